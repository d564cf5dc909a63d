"""Sends requests to other brokers of the cluster: to its controller, to leaders, to coordinators."""
