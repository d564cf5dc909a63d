"""State derived from the batches of a log and its files: indexes, leader epochs, producers, transactions."""
