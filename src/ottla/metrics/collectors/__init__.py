"""Reads the facts of each part of a broker: one module each, with the metrics that it declares."""
