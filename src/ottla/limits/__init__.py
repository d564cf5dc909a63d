"""Limits what clients may use: memory (`budget.py`), time on the event loop (`loop_slices.py`, `eager_tasks.py`)."""
