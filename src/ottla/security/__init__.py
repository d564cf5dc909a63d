"""Signs clients in and decides what they may do: TLS, SASL, ACLs, quotas, secrets and the audit log."""
