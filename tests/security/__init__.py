"""Published vulnerabilities of Kafka and of its kin, each a test that fails when the protection is taken out."""
