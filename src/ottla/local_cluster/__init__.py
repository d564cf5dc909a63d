"""Runs a whole cluster on one machine: ZooKeeper and several brokers, as processes of one command (`ottla up`)."""
