"""Validates the batches of producers before they are appended (Kafka's `LogValidator`)."""
