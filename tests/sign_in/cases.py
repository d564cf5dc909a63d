"""Lists what clients sign in with: each mechanism over TLS, with the right thing and with all kinds of wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

MUTUAL_TLS: Final = "SSL"
"""In place of a mechanism: the client has a certificate."""
SCRAMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (MUTUAL_TLS, *SCRAMS, "PLAIN", "OAUTHBEARER")
USER: Final = "alice"


class Case(NamedTuple):
    """One attempt to sign in, and what is wrong with it."""

    mechanism: str
    wrong: str = ""

    @property
    def name(self) -> str:
        return f"{self.mechanism}, {self.wrong or 'right'}"

    @property
    def is_short(self) -> bool:
        """Whether `make test` tries it too, with the clients that cost little."""
        return not self.wrong or self in SHORT


BROKERS_CERTIFICATE: Final = (
    "another host name",
    "the broker's certificate expired",
    "the broker's certificate is foreign",
)
"""What a client refuses, whatever it would have signed in with."""
CLIENTS_CERTIFICATE: Final = ("no certificate", "an expired certificate", "a foreign certificate")
PASSWORDS: Final = ("a wrong password", "an unknown user")
TOKENS: Final = ("an expired token", "an unsigned token", "a foreign token", "a token for another audience", "no JWT")
SHORT: Final = frozenset(
    {
        Case(MUTUAL_TLS, "an expired certificate"),
        Case(MUTUAL_TLS, "another host name"),
        Case("SCRAM-SHA-512", "a wrong password"),
        Case("PLAIN", "a wrong password"),
        Case("OAUTHBEARER", "an expired token"),
    }
)


def _cases() -> Iterator[Case]:
    of_mechanisms = {MUTUAL_TLS: CLIENTS_CERTIFICATE, "OAUTHBEARER": TOKENS}
    for mechanism in MECHANISMS:
        for wrong in ("", *of_mechanisms.get(mechanism, PASSWORDS), *BROKERS_CERTIFICATE):
            yield Case(mechanism, wrong)


CASES: Final = tuple(_cases())
