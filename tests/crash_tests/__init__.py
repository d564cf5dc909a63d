"""Crash tests: every stop of scripted workloads, every state a crash may leave on the disk, and what must be true then."""
