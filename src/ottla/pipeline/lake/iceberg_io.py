"""Makes Iceberg's metadata durable as it is written, so that the catalogue never names what a power cut would take.

`pyiceberg` finds this class by its name (`py-io-impl`) and demands its base class.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from ottla.core.files import File, SystemFiles


class DurableIO(PyArrowFileIO):
    """Reads as `pyiceberg` does; what it writes is on the disk when it is closed."""

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        """Return a file to write."""
        return _DurableOutput(location, self)


class _DurableOutput(OutputFile):
    def __init__(self, location: str, io: DurableIO) -> None:
        super().__init__(location)
        self._io = io
        self._path = Path(location.removeprefix("file://"))

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def to_input_file(self) -> InputFile:
        return self._io.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        if self._path.exists() and not overwrite:
            raise FileExistsError(str(self._path))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        return _DurableStream(self._path)


class _DurableStream:
    """An `OutputStream`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: File | None = SystemFiles().open(path, create=True)

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return self._file is None

    def write(self, data: bytes) -> int:
        """Write at the end of the file."""
        assert self._file is not None
        self._file.append(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        assert self._file is not None
        return self._file.size()

    def close(self) -> None:
        """Sync the bytes, the name, and the directory's own name to the disk, and close the file."""
        if self._file is None:
            return
        self._file.sync()
        self._file.close()
        self._file = None
        SystemFiles().sync_directory(self._path.parent)
        SystemFiles().sync_directory(self._path.parent.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
