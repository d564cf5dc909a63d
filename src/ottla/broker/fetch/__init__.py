"""Serves the fetches of consumers and of followers, and keeps their sessions."""
