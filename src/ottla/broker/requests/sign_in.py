"""Admits the requests of connections that have not signed in: only those which a sign-in is made of.

It stands before the driver as the `dispatch` of such a connection, so that one that has signed in costs nothing: from
then on its requests go to the driver at once. A session that has an end comes back here when it is over, or when the
client renews it. What may come next is decided in security/sasl/sign_in.py.

A failed sign-in is answered after `connection.failed.authentication.delay.ms`, and then the connection is closed. Only
that connection waits.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from ottla.broker.requests.driver import RequestDriver
from ottla.broker.sign_ins import SignIns
from ottla.core.errors import ErrorCode, error_for
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.security.sasl.mechanism import AuthenticationFailed
from ottla.security.sasl.sign_in import SignIn, Verdict
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import parse_request_header

_LENGTH: Final = struct.Struct(">i")


class SignInDispatch:
    """Takes the requests of the connections that are signing in."""

    def __init__(self, sign_ins: SignIns, driver: RequestDriver) -> None:
        self._sign_ins, self._driver = sign_ins, driver
        sign_ins.dispatch_by(before=self, after=driver)

    def __call__(self, connection: ServerConnection, frame: memoryview, pending: PendingResponse, /) -> None:
        """Begin one request: a frame of the sign-in, or anything else, which ends the connection."""
        sign_ins = self._sign_ins
        sign_in = sign_ins.of(connection)
        if sign_in is None:
            connection.dispatch = self._driver
            self._driver(connection, frame, pending)
            return
        if sign_ins.must_wait(sign_in):
            pending.abandon()  # its client tries again, at another broker perhaps
            return
        if sign_in.takes_raw_tokens:
            asyncio.get_running_loop().call_soon(self._take_raw_token, connection, sign_in, bytes(frame), pending)
            return
        try:
            key = parse_request_header(frame)[0]
        except MalformedRequest as error:
            pending.fail(error)
            return
        match sign_in.verdict(key):
            case Verdict.SERVE:
                self._driver(connection, frame, pending)
            case Verdict.CLOSE:
                pending.fail(MalformedRequest(f"a request of API {key} before the client has signed in"))
            case Verdict.REFUSE:
                message = f"a request of API {key} in the middle of a sign-in"
                sign_ins.note_failure(connection, sign_in, AuthenticationFailed(message))
                illegal = error_for(ErrorCode.ILLEGAL_SASL_STATE, "Request is not valid given the current SASL state.")
                sign_ins.end(connection, sign_in, self._driver.prepare_refusal(connection, frame, pending, illegal))
            case Verdict.CLOSE_LATER:
                assert sign_in.error is not None, "the handshake has set it"
                sign_ins.note_failure(connection, sign_in, sign_in.error)
                sign_ins.end(connection, sign_in, pending.abandon)

    def _take_raw_token(
        self, connection: ServerConnection, sign_in: SignIn, token: bytes, pending: PendingResponse
    ) -> None:
        """Answer a token without headers. A failure has no answer."""
        try:
            step = self._sign_ins.take_token(connection, sign_in, token)
        except AuthenticationFailed:
            self._sign_ins.end(connection, sign_in, pending.abandon)
        else:
            pending.send((_LENGTH.pack(len(step.token)) + step.token,))
