"""Keeps the data in order: the scheduled tasks, the log cleaner, the scrubber, and what deleted topics leave."""
