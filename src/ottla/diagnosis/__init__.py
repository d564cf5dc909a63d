"""Finds out why something is not well in a cluster: facts, gathered once, and one table of rules over them."""
