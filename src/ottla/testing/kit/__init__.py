"""Runs brokers for the tests of users, in a thread of their process: `ottla.testing.kafka`."""
