"""Mirrors topics and the committed offsets of groups from one cluster to another (`ottla mirror`).

topics.py        selects topics, names their copies, creates and grows them
translation.py   maps an offset of a source partition to the same record's offset in its copy
positions.py     stores both in the target cluster, in the transaction that writes the records
groups.py        translates the committed offsets of groups
mirror.py        copies records in transactions
"""
