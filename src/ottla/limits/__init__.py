"""Limits what clients may use: memory (`budget.py`) and time on the event loop (`loop_slices.py`)."""
