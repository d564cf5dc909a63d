"""Clients of others sign in by each mechanism, rightly and wrongly; what comes of it is compared with Kafka's.

    python -m tests.sign_in         writes outcomes.toml, by asking a real Kafka

cases.py lists the cases, clients.py the clients, secured_broker.py starts the broker. A client is a program of its own:
it takes a file of cases, and prints one line for each.
"""
