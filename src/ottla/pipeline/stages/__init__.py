"""Runs the stages of a job: load, stream, compact, audit and report."""
