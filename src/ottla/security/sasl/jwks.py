"""Keeps the keys that sign tokens: a JSON Web Key Set, read from an https URL or a file, again and again.

They are read off the loop. A token whose key is not known has them read at once, at most every ten seconds: such a
sign-in fails, and the client's next one succeeds if the key is new. Keys that were read stay in use while the issuer
cannot be reached.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import jwt

from ottla.core.executors import Executor
from ottla.core.runtime import make_executor

log = logging.getLogger(__name__)

JWKS_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
UNKNOWN_KEY_S: Final = 10.0
"""The keys are not read more often for tokens whose key is not known."""


class TokenKey(NamedTuple):
    """A key, and the algorithm that it is for if its issuer says so."""

    public_key: Any
    algorithm: str | None


Keys = Mapping[str, TokenKey]


class UnreadableKeys(Exception):
    """Reports in one line why the keys cannot be read."""


def why_not_readable(url: str) -> str:
    """Return why keys are not read from a URL; empty if they are.

    >>> why_not_readable("http://issuer.example/keys")
    'keys are read from https:// or, on this machine, from file:///'
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return str(error)
    if not url:
        return "it is required: tokens are never taken without a check of their signature"
    if parts.scheme == "https" and parts.hostname:
        return ""
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return ""
    return "keys are read from https:// or, on this machine, from file:///"


def parse_keys(text: bytes) -> Keys:
    """Return the keys by their id; those without one, or of an unknown kind, are left out. Raises UnreadableKeys."""
    try:
        listed = json.loads(text)["keys"]
        documents = [dict(document) for document in listed]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnreadableKeys(f"they are no JSON Web Key Set: {error!r}") from None
    keys = {}
    for document in documents:
        key_id, algorithm = document.get("kid"), document.get("alg")
        if not isinstance(key_id, str) or document.get("kty") == "oct" or document.get("use") not in (None, "sig"):
            continue
        try:
            key = jwt.PyJWK(document)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            log.debug("a key of tokens is passed over: %s", error)
            continue
        keys[key_id] = TokenKey(key.key, algorithm if isinstance(algorithm, str) else None)
    return keys


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same host alone, and to https."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request. Raises UnreadableKeys."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if (new.scheme, new.hostname, new.port) != (old.scheme, old.hostname, old.port):
            raise UnreadableKeys("it redirects to another host")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_keys(url: str, trust: ssl.SSLContext | None = None) -> Keys:
    """Read the keys: blocks. `trust` is for another trust than that of the system. Raises UnreadableKeys."""
    try:
        if url.startswith("file:"):
            with Path(url2pathname(urlsplit(url).path)).open("rb") as file:
                text = file.read(JWKS_BYTES_MAX + 1)
        else:
            opener = urllib.request.build_opener(_SameHost, urllib.request.HTTPSHandler(context=trust))
            with opener.open(url, timeout=TIMEOUT_S) as response:
                text = response.read(JWKS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise UnreadableKeys(str(error)) from None
    if len(text) > JWKS_BYTES_MAX:
        raise UnreadableKeys(f"they are larger than {JWKS_BYTES_MAX} bytes")
    return parse_keys(text)


class _Fetch:
    """Reads the keys in a thread."""

    def __init__(self, keys: Jwks, url: str) -> None:
        self._keys, self._url = keys, url
        self.found: Keys | None = None
        self.error = ""

    def run(self) -> None:
        """Read them."""
        try:
            self.found = fetch_keys(self._url)
        except UnreadableKeys as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - of a library: the thread must not end
            self.error = repr(error)

    def finished(self) -> None:
        """Use them."""
        self._keys.fetched(self)


class Jwks:
    """The keys of one issuer."""

    def __init__(self, url: str, *, refresh_s: float, retry_s: float, retry_s_max: float) -> None:
        self._url = url
        self._refresh_s, self._retry_s, self._retry_s_max = refresh_s, retry_s, retry_s_max
        self._keys: Keys = MappingProxyType({})
        self._errors = 0  # in a row
        self._executor: Executor | None = None  # while the keys are followed
        self._timer: asyncio.TimerHandle | None = None
        self._is_fetching = False
        self._fetched_at = float("-inf")
        self._first: asyncio.Future[None] | None = None

    def find(self, key_id: str) -> TokenKey | None:
        """Return a key. If it is not known, the keys are read again soon."""
        key = self._keys.get(key_id)
        if key is None and self._executor is not None:
            loop = asyncio.get_running_loop()
            if not self._is_fetching and loop.time() - self._fetched_at >= UNKNOWN_KEY_S:
                self._fetch()
        return key

    async def start(self) -> None:
        """Read the keys for the first time, and follow them. Returns also if they could not be read."""
        loop = asyncio.get_running_loop()
        self._executor = make_executor("jwks", loop.call_soon_threadsafe)
        self._first = loop.create_future()
        self._fetch()
        await self._first

    def close(self) -> None:
        """Read the keys no more."""
        executor, self._executor = self._executor, None
        if executor is not None and not self._is_fetching:  # a thread that waits for the issuer ends with the process
            executor.close()
        if self._timer is not None:
            self._timer.cancel()

    def fetched(self, fetch: _Fetch) -> None:
        """Take over what a thread has read, and plan the next time."""
        self._is_fetching = False
        if self._executor is None:
            return
        loop = asyncio.get_running_loop()
        self._fetched_at = loop.time()
        if fetch.found is None:
            if self._errors == 0:
                log.error("the keys of tokens cannot be read from %s: %s", self._url, fetch.error)
            delay_s = min(self._retry_s * 2 ** min(self._errors, 30), self._retry_s_max)
            self._errors += 1
        else:
            if not fetch.found:
                log.error("%s has no key with a `kid` that signs tokens: no token is taken", self._url)
            elif self._errors:
                log.warning("the keys of tokens have been read again from %s", self._url)
            self._keys, self._errors, delay_s = fetch.found, 0, self._refresh_s
        self._timer = loop.call_later(delay_s, self._fetch)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _fetch(self) -> None:
        if self._executor is None or self._is_fetching:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_fetching = True
        self._executor.submit(_Fetch(self, self._url))
