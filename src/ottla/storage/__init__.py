"""Stores logs on disk: the partitions' bytes in Kafka's own files. Synchronous, without sockets."""
