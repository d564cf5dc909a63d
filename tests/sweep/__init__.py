"""The crash sweep: every stop of scripted workloads, every state a disk may be left in, and what must be true then."""
