"""Searches records: a filter expression, its grammar and its evaluation, and the last records that match.

`parser.parse` turns a text into the typed tree of `expression.py`; `matcher.compile_filter` turns the tree into a
function of a record. The text is data: no part of it is run as Python.
"""
