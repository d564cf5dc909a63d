"""Serves the fetches of consumers and of followers."""
