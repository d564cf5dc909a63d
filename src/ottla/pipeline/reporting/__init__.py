"""Renders reports: one HTML file from a job's tables."""
