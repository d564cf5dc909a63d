"""Reads and writes Iceberg's metadata through a `LakeStore`, durably, before a catalog names it.

`pyiceberg` finds this class by its name (`py-io-impl`) and demands its base classes. A catalog may give credentials for
a table with it (vended credentials): they are then the store's.
"""

from __future__ import annotations

import posixpath
from types import TracebackType
from typing import Any, Self

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from ottla.pipeline.lake.catalog import STORE
from ottla.pipeline.lake.lake_store import LakeStore, Output

_VENDED = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "client.region": "aws_region",
    "s3.endpoint": "aws_endpoint",
}
_CREDENTIALS = ("s3.access-key-id", "s3.session-token")


class StoreIO(FileIO):
    """A `FileIO` on a store; what it writes is durable when it is closed."""

    def __init__(self, properties: dict[str, Any]) -> None:
        super().__init__(properties)
        self.store: LakeStore = with_vended(properties[STORE], properties)

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _StoreInput(location, *self._place(location))

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return _StoreOutput(location, *self._place(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        store, key = self._place(location if isinstance(location, str) else location.location)
        store.delete(key)

    def _place(self, location: str) -> tuple[LakeStore, str]:
        key = self.store.key(location)
        if key is not None:
            return self.store, key
        return self.store.at(posixpath.dirname(location)), posixpath.basename(location)


def with_vended(store: LakeStore, properties: dict[str, Any]) -> LakeStore:
    """Return the store with the credentials that a catalog gave, if it gave some."""
    if not any(properties.get(name) for name in _CREDENTIALS):
        return store
    credentials = {option: str(properties[name]) for name, option in _VENDED.items() if properties.get(name)}
    return store.with_credentials(credentials)


class _StoreInput(InputFile):
    def __init__(self, location: str, store: LakeStore, key: str) -> None:
        super().__init__(location)
        self._store, self._key = store, key

    def __len__(self) -> int:
        stored = self._store.head(self._key)
        if stored is None:
            raise FileNotFoundError(self.location)
        return stored.size_bytes

    def exists(self) -> bool:
        return self._store.head(self._key) is not None

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002
        stream: InputStream = self._store.input(self._key)
        return stream


class _StoreOutput(OutputFile):
    def __init__(self, location: str, store: LakeStore, key: str) -> None:
        super().__init__(location)
        self._store, self._key = store, key

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._store.head(self._key) is not None

    def to_input_file(self) -> InputFile:
        return _StoreInput(self.location, self._store, self._key)

    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return _StoreStream(self._store, self._key)


class _StoreStream:
    """An `OutputStream`."""

    def __init__(self, store: LakeStore, key: str) -> None:
        self._store, self._key = store, key
        self._output: Output | None = store.output(key)
        self._bytes = 0

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return self._output is None

    def write(self, data: bytes) -> int:
        """Write at the end of the file."""
        assert self._output is not None
        self._output.sink.write(data)
        self._bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._bytes

    def close(self) -> None:
        """Complete the file and make it durable, with its name."""
        if self._output is None:
            return
        output, self._output = self._output, None
        output.close()
        self._store.sync_names([self._key])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
