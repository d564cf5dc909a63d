"""Implements the membership of share groups (KIP-932). The package `share_partitions` consumes their partitions."""
