"""Bugs planted on purpose, to see that the suites find them: `python -m tests.planted` prints who found what, and how."""
