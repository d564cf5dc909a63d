"""Keeps the sessions of consumers and followers, and makes the parts that their Fetch responses share."""
