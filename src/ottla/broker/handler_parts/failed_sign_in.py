"""Delays the response to a failed sign-in, after which the connection is closed."""

from __future__ import annotations

import asyncio

from ottla.net.connection import ServerConnection
from ottla.security.sasl.sign_in import SignIn


async def close_after_delay(connection: ServerConnection, sign_in: SignIn) -> None:
    """Wait for `connection.failed.authentication.delay.ms`; close the connection once the response is sent.

    What the handler returns is encoded and given to the transport in this turn of the loop; in the next one the
    connection is closed, once that has left.
    """
    await asyncio.sleep(sign_in.listener.failure_delay_s)
    asyncio.get_running_loop().call_soon(connection.close_when_sent)
