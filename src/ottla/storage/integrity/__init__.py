"""Detects corruption: checksums, verified ranges, the backup of small files."""
