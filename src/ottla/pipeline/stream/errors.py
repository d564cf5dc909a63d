"""What a person may have written wrong about a stream. No Spark here: the shell's prompt knows these without it."""

from __future__ import annotations


class InvalidFunction(ValueError):
    """A job names a Python function that cannot be used. The message says why."""


class InvalidExpression(ValueError):
    """An expression or a function of a job is not what Spark can compute from the table. The message says which."""
