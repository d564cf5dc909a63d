"""Serves the methods of the kit by HTTP, for tests in other languages."""
