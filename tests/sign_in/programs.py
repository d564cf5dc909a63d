"""Defines how a program that signs in is asked and what it answers; those in Python are run by this."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypedDict

SIGNED_IN: Final = "signed in"
PATIENCE_S: Final = 40
REASON: Final = re.compile(r"\[Error 58\].*?(?=\)?$| \(backoff)|\[SSL: .*")
"""What Python's clients log of SASL_AUTHENTICATION_FAILED, and of an error of TLS."""


class SignIn(TypedDict):
    """A case, as a program reads it. What a case has not is an empty text."""

    name: str
    is_refused: bool  # so that a client that tries again for a while ends soon
    bootstrap: str
    topic: str
    mechanism: str  # SSL for a client that has a certificate alone
    user: str
    password: str
    token: str
    trusted: str  # file of the authority that the client trusts
    certificate: str  # file
    key: str


class Reasons(logging.Handler):
    """Ends the attempt when a client logs why it is refused: some go on, and raise then that they could not connect."""

    def __init__(self, end: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}"
        if reason := REASON.search(text.strip()):
            self._end(reason[0])


def run_program(sign_in: Callable[[SignIn], str]) -> None:
    """Sign in by each case of the file that the command line names, all at once, and print what came of each.

    Each case has a process of its own: clients leave threads and sockets, and log lines without saying of which client.
    """
    cases: list[SignIn] = json.loads(Path(sys.argv[1]).read_text())
    forked = multiprocessing.get_context("fork")
    results = []
    for case in cases:
        receiver, sender = forked.Pipe(duplex=False)
        forked.Process(target=_run_case, args=(sign_in, case, sender), daemon=True).start()
        sender.close()
        results.append(receiver)
    for number, receiver in enumerate(results):
        print(number, str(receiver.recv()).replace("\n", " "), sep="\t")


def _run_case(sign_in: Callable[[SignIn], str], case: SignIn, sender: Connection) -> None:
    def end(outcome: str) -> None:
        sender.send(outcome)
        os._exit(0)

    logging.getLogger().handlers[:] = [Reasons(end)]
    try:
        end(sign_in(case))
    except Exception as error:  # noqa: BLE001 - it is what came of the case
        end(f"{type(error).__name__}: {error}")
