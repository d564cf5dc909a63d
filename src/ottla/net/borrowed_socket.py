"""Sends on the descriptor of a transport."""

from __future__ import annotations

import socket


class BorrowedSocket(socket.socket):
    """A socket whose descriptor stays its transport's: it is never closed here."""

    __slots__ = ()

    def __del__(self) -> None:
        self.detach()
