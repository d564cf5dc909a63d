"""CVE-2021-38153: passwords were compared byte by byte, so that the time of a refusal showed how many were right."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from scramp import ScramClient

from ottla.security.sasl.credentials import ScramCredential, TokenCredential, from_password
from ottla.security.sasl.mechanism import AuthenticationFailed
from ottla.security.sasl.plain import PlainExchange
from ottla.security.sasl.scram import ScramExchange

SECRET = "secret of alice"
CREDENTIAL = from_password("SCRAM-SHA-256", SECRET)


class Users:
    """alice."""

    def user(self, name: str, _mechanism: str) -> ScramCredential | None:
        return CREDENTIAL if name == "alice" else None

    def token(self, _token_id: str, _mechanism: str) -> TokenCredential | None:
        return None


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What is compared in constant time."""
    found: list[tuple[Any, Any]] = []
    compare = hmac.compare_digest

    def counted(a: Any, b: Any) -> bool:
        found.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    return found


@pytest.mark.parametrize("user", ["alice", "stranger"])
def test_passwords_of_plain_are_compared_in_constant_time(user: str, compared: list[tuple[Any, Any]]) -> None:
    """Of a user that does not exist too: how long it takes shows nothing."""
    with pytest.raises(AuthenticationFailed):
        PlainExchange({"alice": SECRET}).evaluate(f"\0{user}\0secret of bob".encode())
    ((given, _),) = compared
    assert given == b"secret of bob"


@pytest.mark.parametrize("user", ["alice", "stranger"])
def test_keys_of_scram_are_compared_in_constant_time(user: str, compared: list[tuple[Any, Any]]) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", Users(), b"key")
    client = ScramClient(["SCRAM-SHA-256"], user, "wrong")
    client.set_server_first(exchange.evaluate(client.get_client_first().encode()).decode())
    with pytest.raises(AuthenticationFailed):
        exchange.evaluate(client.get_client_final().encode())
    keys = [pair for pair in compared if isinstance(pair[1], bytes)]
    assert len(keys) == 1
    assert user == "stranger" or keys[0][1] == CREDENTIAL.stored_key
