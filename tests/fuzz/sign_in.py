"""Sends a connection that has not signed in whatever comes: frames, halves of frames, tokens of every mechanism.

    python -m tests.fuzz.sign_in --inputs 10000000 --jobs 2
    python -m tests.fuzz.sign_in --inputs 5000000 --from-block 50    the second half, after a run that was ended at block 50

An input is what one client sends until it is disconnected. A finding is an unexpected error, an input that takes a
second, memory that grows, a client that is served without having signed in, or one that signs in without a secret. The
seed and the number of a block decide its 100,000 inputs, so that blocks may run at any time and in any process.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import random
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from scramp import ScramClient

from ottla.broker import config
from ottla.broker.requests.driver import RequestDriver
from ottla.broker.requests.sign_in import SignInDispatch
from ottla.broker.sign_ins import SignIns
from ottla.core.security_protocols import SecurityProtocol
from ottla.core.settings import SettingText, load
from ottla.limits.budget import ByteBudget
from ottla.metadata_store.cluster_view import ClusterView
from ottla.net.connection import PendingResponse, ReceiveBuffer, ServerConnection
from ottla.net.malformed_requests import MalformedRequestLog
from ottla.security.config import OAUTHBEARER, PLAIN, SaslConfig
from ottla.security.sasl.credentials import HASHES, ScramCredential, TokenCredential, from_password
from ottla.security.sasl.jwks import fetch_keys
from ottla.security.sasl.oauthbearer import OAuthBearerExchange, TokenValidator
from ottla.security.sasl.plain import PlainExchange
from ottla.security.sasl.scram import ScramExchange
from ottla.security.sasl.sign_in import ListenerSasl
from ottla.wire.apis import ApiKey
from tests.fuzz.harnesses import mutated
from tests.support.requests import bare_services
from tests.support.tokens import Issuer, first_message
from tests.support.wire_client import encode

SECRET = "secret"
BUDGET_BYTES = 16 << 20
FRAME_BYTES_MAX = 512 * 1024
SLOW_S = 1.0
BLOCK = 100_000
WARM = 20_000
"""Inputs before the memory is looked at for the first time."""

_TURNS = 8


class Finding(AssertionError):
    """Reports what an input did that no input must do."""


class _Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(self.format(record))


class _Users:
    """alice, of each mechanism."""

    def __init__(self) -> None:
        self._credentials = {mechanism: from_password(mechanism, SECRET) for mechanism in HASHES}

    def user(self, name: str, mechanism: str) -> ScramCredential | None:
        """Return the credential of alice."""
        return self._credentials[mechanism] if name == "alice" else None

    def token(self, token_id: str, mechanism: str) -> TokenCredential | None:
        """Return the credential of the token `token`."""
        return TokenCredential("alice", self._credentials[mechanism], 1 << 50) if token_id == "token" else None


class SignInTarget:
    """The sign-in of a broker, without a socket. To be used in one event loop."""

    def __init__(self, directory: Path) -> None:
        self.issuer = Issuer(directory / "keys.json")
        given = {key: SettingText(text, "") for key, text in self.issuer.settings.items()}
        validator = TokenValidator(load(SaslConfig, given))
        validator.keys._keys = fetch_keys(self.issuer.file.as_uri())
        users = _Users()
        exchanges: dict[str, Any] = {
            **{name: lambda name=name: ScramExchange(name, users, b"key") for name in HASHES},
            PLAIN: lambda: PlainExchange({"alice": SECRET}),
            OAUTHBEARER: lambda: OAuthBearerExchange(validator),
        }
        listener = ListenerSasl(exchanges=exchanges, session_ms_max={PLAIN: 60_000}, failure_delay_s=0)
        settings, _ = config.read(file=None, environment={}, options={})
        services = bare_services(config=settings, cluster=SimpleNamespace(current=ClusterView()))
        services.sign_ins = SignIns({"SASL": listener}, services.clock)
        driver = RequestDriver(services, ByteBudget(1 << 30))
        self._dispatch = SignInDispatch(services.sign_ins, driver)

        def after(connection: ServerConnection, frame: memoryview, pending: PendingResponse, /) -> None:
            """Serve what belongs to a sign-in, and answer nothing else: the handlers are not what is tested."""
            key = int.from_bytes(frame[:2], "big")
            if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS):
                driver(connection, frame, pending)
            else:
                pending.send((b"served",))

        services.sign_ins.dispatch_by(before=self._dispatch, after=after)
        self._expiries = services.sign_ins._expiries
        self._shared, self._malformed = ReceiveBuffer(), MalformedRequestLog()
        self.budget = ByteBudget(BUDGET_BYTES)
        self._clock = services.clock
        self.errors = _Errors()

    def __enter__(self) -> Self:
        """Take what the broker logs; the refusals are not shown."""
        logger = logging.getLogger("ottla")
        logger.addHandler(self.errors)
        logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the log as it was."""
        logger = logging.getLogger("ottla")
        logger.removeHandler(self.errors)
        logger.propagate = True

    def connection(self) -> ServerConnection:
        """Return a new connection."""
        connection = ServerConnection(
            dispatch=self._dispatch,
            on_open=lambda _: True,
            on_close=lambda _: None,
            shared=self._shared,
            budget=ByteBudget(1 << 30),
            busy_poller=None,
            frame_bytes_max=1 << 20,
            sign_in_frame_bytes_max=FRAME_BYTES_MAX,
            sign_in_budget=self.budget,
            now=self._clock.monotonic,
            listener="SASL",
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            malformed=self._malformed,
        )
        connection.host = "192.0.2.1"
        return connection

    async def feed(self, pieces: list[bytes]) -> bool:
        """Send a connection these pieces, one after the other; returns whether the client has signed in."""
        connection = self.connection()
        for piece in pieces:
            at = 0
            while at < len(piece) and not connection._closing:
                buffer = connection.get_buffer(-1)
                size = min(len(buffer), len(piece) - at)
                if not size:
                    break
                buffer[:size] = piece[at : at + size]
                connection.buffer_updated(size)
                at += size
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
        is_signed_in = connection.is_signed_in
        connection.connection_lost(None)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if self.errors.lines:
            raise Finding(self.errors.lines[0])
        if self.budget.used_bytes or self._expiries:
            raise Finding("memory is held for a client that is gone")
        return is_signed_in


def framed(content: bytes) -> bytes:
    """A frame."""
    return struct.pack(">i", len(content)) + content


def conversations(issuer: Issuer, token: str) -> list[list[bytes]]:
    """What clients send: right sign-ins, and steps of them."""
    first = ScramClient(["SCRAM-SHA-256"], "alice", SECRET).get_client_first().encode()
    versions = encode("api_versions", 3, 1, {"client_software_name": "a", "client_software_version": "1"})

    def shakes(mechanism: str, version: int = 1) -> bytes:
        return framed(encode("sasl_handshake", version, 2, {"mechanism": mechanism}))

    def gives(token: bytes, version: int = 2) -> bytes:
        return framed(encode("sasl_authenticate", version, 3, {"auth_bytes": token}))

    plain, final = b"\0alice\0" + SECRET.encode(), b"c=biws,r=abc,p=" + b"A" * 43 + b"="
    metadata = framed(encode("metadata", 8, 4, {"topics": []}))
    return [
        [framed(versions), shakes(PLAIN), gives(plain)],
        [shakes(PLAIN), gives(plain), shakes(PLAIN), gives(plain)],
        [shakes(PLAIN, 0), framed(plain)],
        [shakes("SCRAM-SHA-256"), gives(first), gives(final)],
        [shakes("SCRAM-SHA-512", 0), framed(first), framed(final)],
        [shakes("SCRAM-SHA-256"), gives(b"n,a=alice,n=alice,r=abc,tokenauth=true"), gives(final, 0)],
        [shakes(OAUTHBEARER), gives(first_message(token))],
        [shakes(OAUTHBEARER), gives(first_message(issuer.token(aud="x"))), gives(b"\x01")],
        [shakes("GSSAPI")],
        [metadata],
        [shakes(PLAIN), metadata],
    ]


def wrong(known: list[list[bytes]], source: random.Random) -> list[bytes]:
    """A conversation with something wrong: other bytes, another order, other lengths, cut elsewhere."""
    pieces = list(source.choice(known))
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(pieces))
        kind = source.randrange(6)
        if kind == 0:
            pieces[at] = framed(mutated(pieces[at][4:], source))
        elif kind == 1:
            pieces[at] = mutated(pieces[at], source)
        elif kind == 2:
            pieces[at] = (
                struct.pack(">i", source.choice([-1, 0, 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1])) + pieces[at][4:]
            )
        elif kind == 3:
            pieces.insert(at, source.choice(source.choice(known)))
        elif kind == 4:
            source.shuffle(pieces)
        else:
            pieces[at] = framed(source.randbytes(source.randrange(200)))
    whole = b"".join(pieces)
    if source.random() < 0.3 and len(whole) > 2:
        cut = source.randrange(1, len(whole))
        return [whole[:cut], whole[cut:]]
    return pieces


def rss_bytes() -> int:
    """The memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def fuzz(
    inputs: int, seed: int, directory: Path, *, blocks: Sequence[int] = (0,), report: bool = False
) -> tuple[int, int]:
    """Try so many inputs of each block; returns how many signed in and how many did not. Raises Finding."""
    with SignInTarget(directory) as target:
        return await _fuzz(target, inputs, seed, blocks, report=report)


async def _fuzz(
    target: SignInTarget, inputs: int, seed: int, blocks: Sequence[int], *, report: bool
) -> tuple[int, int]:
    token = target.issuer.token()
    known = conversations(target.issuer, token)
    right = [await target.feed(conversation) for conversation in known]
    assert [at for at, signed_in in enumerate(right) if signed_in] == [0, 1, 2, 6], right
    secrets = SECRET.encode(), token.encode()
    counts = [0, 0]
    tried = before = 0
    for block in blocks:
        source = random.Random(f"{seed} {block}")
        for number in range(inputs):
            pieces = wrong(known, source)
            began = time.monotonic()
            try:
                signed_in = await target.feed(pieces)
                assert not signed_in or any(secret in b"".join(pieces) for secret in secrets), "signed in, no secret"
            except Exception as error:
                raise Finding(f"input {number} of block {block}, seed {seed}: {pieces!r}: {error!r}") from error
            if time.monotonic() - began > SLOW_S:
                raise Finding(
                    f"input {number} of block {block}, seed {seed} took {time.monotonic() - began:.1f} s: {pieces!r}"
                )
            counts[signed_in] += 1
            tried += 1
            if tried == min(WARM, inputs // 2):
                before = rss_bytes()
        grown = rss_bytes() - before
        if before and grown > before // 4:
            raise Finding(f"{tried} inputs took {grown >> 20} MiB of memory")
        if report:
            sys.stdout.write(f"block {block} done; together {tried} inputs, {counts[1]} signed in, {grown >> 10} KiB\n")
            sys.stdout.flush()
    return counts[1], counts[0]


def run_blocks(seed: int, blocks: Sequence[int]) -> tuple[int, int]:
    """Try all inputs of these blocks, in a process of their own."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(fuzz(BLOCK, seed, Path(directory), blocks=blocks, report=True))


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.sign_in", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=10_000_000, help="rounded up to whole blocks")
    parser.add_argument("--from-block", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    blocks = range(given.from_block, given.from_block + -(-given.inputs // BLOCK))
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(run_blocks, given.seed, blocks[at :: given.jobs]) for at in range(given.jobs)]
        found = [part.result() for part in parts]
    signed_in, refused = (sum(counts) for counts in zip(*found, strict=True))
    sys.stdout.write(f"seed {given.seed}, blocks {blocks[0]} to {blocks[-1]}: ")
    sys.stdout.write(f"{signed_in} inputs signed in, {refused} did not; no finding\n")


if __name__ == "__main__":
    main()
