"""Serves HTTP: metrics, health and the console of a broker, and the control API of brokers in memory.

The only package that imports uvicorn. Nothing here is imported unless a listener is asked for.
"""
