"""Reads what the broker counts, at each scrape, and serves it: Prometheus, OpenMetrics, OTLP, health."""
