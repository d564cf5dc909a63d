"""Limits what one client may use: memory for its requests (`budget.py`) and time on the event loop (`slices.py`)."""
