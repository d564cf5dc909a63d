"""Audits a load: accounts for every offset of the log in the tables, by partition and time."""
