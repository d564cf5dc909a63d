"""Runs the service as a process: one broker or several workers, its signals and its log."""
