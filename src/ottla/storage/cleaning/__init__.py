"""Compacts logs (Kafka's `LogCleaner`)."""
