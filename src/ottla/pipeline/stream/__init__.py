"""Aggregates by windows of event time, updated as a table is loaded."""
