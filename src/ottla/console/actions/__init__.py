"""The changes of pages: each is planned from a form, shown, and then done (`plans.py`)."""
