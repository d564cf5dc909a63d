"""Programs of a shop."""
