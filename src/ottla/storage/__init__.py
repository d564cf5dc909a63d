"""The log on disk: one partition's bytes in Kafka's own files. Synchronous, ignorant of sockets."""
