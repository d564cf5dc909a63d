"""Bugs planted on purpose, to see that the suites find them: `python -m tests.mutation_tests` prints who found what, and how."""
