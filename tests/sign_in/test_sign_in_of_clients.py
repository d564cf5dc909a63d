"""Clients of others sign in over TLS by each mechanism, rightly and wrongly: each gets what it gets from Apache Kafka.

`make test` has the cells of the short set, `make test-sign-in` all of them, and asks a real Kafka the same again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.sign_in.cases import CASES, Case
from tests.sign_in.clients import CLIENTS, SHORT_CLIENTS, outcomes
from tests.sign_in.programs import SIGNED_IN
from tests.sign_in.recorded import recorded
from tests.sign_in.secured_broker import SecuredBroker

pytestmark = [pytest.mark.external, pytest.mark.slow]


def cells() -> Iterator[Any]:
    """Yield each broker with each client and each case."""
    for kind in ("ottla", "kafka"):
        for client in CLIENTS:
            for case in CASES:
                is_short = kind == "ottla" and client in SHORT_CLIENTS and case.is_short
                marks = () if is_short else pytest.mark.sign_in_matrix
                yield pytest.param(kind, client, case, id=f"{kind}-{client}-{case.name}", marks=marks)


class Outcomes:
    """Runs each client once with each broker, for all the cells of the run."""

    def __init__(self, directory: Path, session: pytest.Session, stack: ExitStack, jars: Path) -> None:
        self._directory, self._session, self._stack, self._jars = directory, session, stack, jars
        self._brokers: dict[str, SecuredBroker] = {}
        self._found: dict[tuple[str, str], dict[Case, str]] = {}

    def of(self, kind: str, client: str) -> dict[Case, str]:
        """Return what came of each case."""
        if (kind, client) not in self._found:
            broker = self._broker(kind)
            cases = list(self._cases(kind, client))
            found = outcomes(client, [broker.sign_in(case) for case in cases], self._directory / kind / client)
            self._found[kind, client] = dict(zip(cases, found, strict=True))
        return self._found[kind, client]

    def _broker(self, kind: str) -> SecuredBroker:
        if kind not in self._brokers:
            directory = self._directory / f"broker-{kind}"
            directory.mkdir()
            self._brokers[kind] = SecuredBroker(directory, self._jars if kind == "kafka" else None).start()
            self._stack.callback(self._brokers[kind].stop)
        return self._brokers[kind]

    def _cases(self, kind: str, client: str) -> Iterator[Case]:
        """Yield the cases that are selected: a client of Java takes as long as ten of them for its start."""
        for item in self._session.items:
            chosen = getattr(item, "callspec", None)
            if chosen is not None and (chosen.params.get("kind"), chosen.params.get("client")) == (kind, client):
                yield chosen.params["case"]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    with ExitStack() as stack:
        yield Outcomes(tmp_path_factory.mktemp("sign-in"), request.session, stack, kafka_jars)


@pytest.mark.parametrize(("kind", "client", "case"), cells())
def test_a_client_gets_what_it_gets_from_kafka(found: Outcomes, kind: str, client: str, case: Case) -> None:
    outcome = found.of(kind, client)[case]
    assert outcome == recorded()[client][case.name]
    assert (outcome == SIGNED_IN) == (not case.wrong), "the right ones sign in, and no others"
