"""Manages log directories: lock, identity, checkpoints, and the logs in them (Kafka's `LogManager`)."""
