"""Aggregates by windows of event time, kept up as a table is loaded."""
