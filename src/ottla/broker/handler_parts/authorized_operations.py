"""Declares what a cluster without access control answers about it: everything is authorized, there are no ACLs."""

from __future__ import annotations

from typing import Final

OPERATIONS_OMITTED: Final = -2147483648
"""As a set of authorized operations: not requested by the client (KIP-430)."""

ALL_TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all, as there are no ACLs."""

ALL_CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""

ALL_GROUP_OPERATIONS: Final = 0b1101_0100_1000
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""

NO_AUTHORIZER: Final = "No Authorizer is configured."
"""Kafka's own words, by which clients recognise a cluster without access control."""
