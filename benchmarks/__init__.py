"""Ottla against a real Apache Kafka on the same machine with the same clients: `make bench`, `make bench-backlog`."""
