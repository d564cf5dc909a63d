"""Programs of a shop, each with a mistake."""
