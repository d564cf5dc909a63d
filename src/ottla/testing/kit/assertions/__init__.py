"""Reads from the brokers of a test what it asserts, without a client."""
