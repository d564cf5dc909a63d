"""Keeps the fetch sessions of consumers and of followers."""
