"""mypy knows what each handler gets and returns: one that is registered for another API does not pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.wire import codec

ROOT = Path(__file__).resolve().parent.parent.parent

HEAD = """
from ottla.broker.handlers import heartbeat, metadata, produce, sync_group
from ottla.broker.requests.handler import Awaited, Deferred, ElementWise, ElementWiseAfter, Inline
from ottla.broker.requests.request import Request
from ottla.wire.apis import ApiKey
from ottla.wire.hot.fetch import decode_fetch_request
from ottla.wire.generated import heartbeat as hb, metadata as md, sync_group as sg

NONE: tuple[()] = ()

def inline(request: Request, body: hb.HeartbeatRequest) -> hb.HeartbeatResponse:
    return hb.HeartbeatResponse()

def other_response(request: Request, body: hb.HeartbeatRequest) -> sg.SyncGroupResponse:
    return sg.SyncGroupResponse()

"""
RIGHT = [
    "Inline(hb.MESSAGES, inline, access=NONE)",
    "Awaited(hb.MESSAGES, heartbeat.handle, access=NONE)",
    "ElementWiseAfter(md.MESSAGES, first=metadata.create_missing, answer=metadata.answer, access=NONE)",
    "Deferred(ApiKey.PRODUCE, decode=produce.decode, handle=produce.handle, handle_long=produce.handle_long, access=NONE)",
]
WRONG = [
    "Inline(hb.MESSAGES, inline)",  # it does not say what it requires of a client
    "Inline(sg.MESSAGES, inline, access=NONE)",
    "Inline(hb.MESSAGES, other_response, access=NONE)",
    "Inline(hb.MESSAGES, heartbeat.handle, access=NONE)",
    "Awaited(sg.MESSAGES, heartbeat.handle, access=NONE)",
    "ElementWise(hb.MESSAGES, inline, access=NONE)",
    "ElementWiseAfter(hb.MESSAGES, first=metadata.create_missing, answer=metadata.answer, access=NONE)",
    "Deferred(ApiKey.FETCH, decode=decode_fetch_request, handle=produce.handle, handle_long=produce.handle_long, access=NONE)",
]


def test_mypy_refuses_a_handler_of_another_api(tmp_path: Path) -> None:
    snippet = tmp_path / "pairings.py"
    lines = [f"right_{place} = {pairing}" for place, pairing in enumerate(RIGHT)]
    lines += [f"wrong_{place} = {pairing}" for place, pairing in enumerate(WRONG)]
    snippet.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(snippet)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    first_wrong = HEAD.count("\n") + len(RIGHT) + 1
    refused = {int(line) for line in re.findall(r"pairings\.py:(\d+): error", done.stdout)}
    assert refused == set(range(first_wrong, first_wrong + len(WRONG))), done.stdout + done.stderr


def test_the_messages_of_a_handler_are_those_of_its_row() -> None:
    for row in (*APIS.values(), *INTER_BROKER_APIS.values()):
        handler = row.handler()
        assert handler.key == row.key
        messages = getattr(handler, "messages", None)  # Produce and Fetch have codecs of their own
        if messages is not None:
            assert messages.request is codec.shape_class(row.key, "Request")
            assert messages.response is codec.shape_class(row.key, "Response")
