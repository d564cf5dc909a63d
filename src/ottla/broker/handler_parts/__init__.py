"""Holds what several handlers have in common: fields of their responses, checks, timeouts."""
