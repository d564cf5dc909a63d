"""Implements the server-side assignors of the new group protocols (KIP-848)."""
