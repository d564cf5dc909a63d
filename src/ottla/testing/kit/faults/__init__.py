"""Lets requests, disks and the network fail as a test asks, and records what clients have sent."""
