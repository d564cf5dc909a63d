"""Loads the logs of a directory after a clean or an unclean shutdown (Kafka's `LogLoader`)."""
