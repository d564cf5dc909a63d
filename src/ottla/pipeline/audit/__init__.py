"""The books: every offset of the log accounted for in the tables, by partition and time."""
