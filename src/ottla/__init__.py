"""A distributed commit log that speaks Kafka's wire protocol."""

from ottla import compiled

compiled.install()
