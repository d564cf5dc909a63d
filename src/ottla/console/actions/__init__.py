"""What pages can change: each action is planned from a form, shown, and then done (`plans.py`)."""
