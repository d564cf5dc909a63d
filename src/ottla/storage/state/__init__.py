"""Keeps state derived from a log's batches: indexes, leader epochs, producers, transactions."""
