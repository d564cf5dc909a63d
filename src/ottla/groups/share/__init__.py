"""Implements the membership of share groups (KIP-932). Their partitions are consumed in the package `ottla.share`."""
