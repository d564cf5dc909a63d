"""Implements the log of one partition: segments, appends, reads, truncation, retention and flushes."""
