"""Imports a data directory that Apache Kafka left, and exports one so that Kafka can start on it."""
