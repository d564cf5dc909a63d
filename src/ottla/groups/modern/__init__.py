"""Implements what the groups with server-side assignment share: topic metadata and target assignments (KIP-848)."""
