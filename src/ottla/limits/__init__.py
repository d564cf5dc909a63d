"""Limits what a client may use: memory for requests (`budget.py`) and time on the event loop (`loop_slices.py`)."""
