"""Takes the metrics that clients push (KIP-714): subscriptions, client instances, and the last values they sent."""
