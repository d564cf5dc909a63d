"""Quotas: buckets that bound what clients may use. Today the bytes that requests may hold in memory."""
