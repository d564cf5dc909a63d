"""Names the mistakes in the definition of a stream. Imports no Spark, so that the command line can catch them."""

from __future__ import annotations


class InvalidFunction(ValueError):
    """A job names a Python function that cannot be used. The message says why."""


class InvalidExpression(ValueError):
    """An expression or a function of a job is not what Spark can compute from the table. The message says which."""
