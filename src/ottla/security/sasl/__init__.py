"""Signs clients in by SASL: the mechanisms, the credentials of users, and the steps of a connection (sign_in.py)."""
