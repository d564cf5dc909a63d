"""Small file systems of a test's own: one that fills up, one that reports more space than it has, one that turns read-only.

Root mounts them where everybody sees them. Who is not root mounts a small one in a namespace of its own, which a
sleeping process keeps; it is reached through that process's /proc entry. Where neither is allowed, `CannotMount` says
why, and the test is skipped with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import NotReady, close_output, until, wait_for_line

ENVIRONMENT = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
"""Administrators' commands are found also where PATH is that of a user."""


class CannotMount(Exception):
    """The system does not allow it; the text says what it said."""


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT)
    except OSError as error:
        raise CannotMount(f"{command[0]}: {error}") from error
    if done.returncode:
        raise CannotMount(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout.strip()


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk in memory of `size` ("4m"); the path to reach it by."""
    place.mkdir(parents=True)
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    except CannotMount as refused:
        with _in_a_namespace(place, size, refused) as path:
            yield path
        return
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def _in_a_namespace(place: Path, size: str, refused: CannotMount) -> Iterator[Path]:
    script = f"mount -t tmpfs -o size={size} tmpfs '{place}' && echo mounted && exec sleep infinity"
    try:
        keeper = subprocess.Popen(["unshare", "-rm", "sh", "-c", script], stdout=subprocess.PIPE)
    except OSError as error:
        raise CannotMount(f"{refused}; unshare: {error}") from error
    try:
        wait_for_line(keeper, b"mounted", timeout_s=20)
        yield Path(f"/proc/{keeper.pid}/root{place}")
    except NotReady as error:
        raise CannotMount(f"{refused}; unshare -rm: not allowed either") from error
    finally:
        keeper.kill()
        keeper.wait()
        close_output(keeper)


class LoopDisk:
    """An ext4 on a loop device."""

    def __init__(self, place: Path, image: Path) -> None:
        self.place, self.image = place, image

    def mount(self) -> None:
        """Make it usable, after `unmount` too: what was not written back is gone, as after a power cut."""
        _run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.place))

    def unmount(self) -> None:
        """Take it away."""
        _unmount(self.place)

    def repair(self) -> None:
        """Free space on the backing disk and check the file system, as an operator does before further use."""
        _run("mount", "-o", "remount,size=1g", str(self.image.parent))
        done = subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, check=False, env=ENVIRONMENT)
        assert done.returncode < 4, done  # 1 and 2: it has corrected something

    def turn_read_only(self) -> None:
        """As ext4 does by itself when it finds its own structures corrupt."""
        device = Path(_run("findmnt", "-no", "SOURCE", str(self.place))).name
        trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
        if not trigger.exists():
            raise CannotMount(f"no {trigger} to turn a file system read-only with")
        trigger.write_text("a test")


@contextlib.contextmanager
def loop_disk(directory: Path, *, size_bytes: int, backed_by: str | None = None) -> Iterator[LoopDisk]:
    """An ext4 of `size_bytes`. With `backed_by` ("12m") the image is on a disk that small.

    Then writes succeed, into memory, and the sync that should bring them to the disk finds no free space: thin provisioning.
    """
    if not shutil.which("mkfs.ext4", path=ENVIRONMENT["PATH"]):
        raise CannotMount("no mkfs.ext4")
    with contextlib.ExitStack() as stack:
        under = directory / "under"
        if backed_by is not None:
            under = stack.enter_context(small_disk(under, backed_by))
        else:
            under.mkdir(parents=True)
        image, place = under / "image", directory / "disk"
        with image.open("wb") as file:
            os.truncate(file.fileno(), size_bytes)
        _run("mkfs.ext4", "-q", "-E", "nodiscard", str(image))
        place.mkdir()
        disk = LoopDisk(place, image)
        disk.mount()
        stack.callback(disk.unmount)
        yield disk


def _unmount(place: Path) -> None:
    """Unmount as soon as no process uses it any more."""

    def is_gone() -> bool:
        if not os.path.ismount(place):
            return True
        return subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0

    try:
        until(is_gone, timeout_s=20)
    except TimeoutError:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, *, leave_bytes: int = 0) -> Path:
    """Write a file until there is no room for more, then give back `leave_bytes`; which file."""
    filler = place / "filler"
    with filler.open("ab", buffering=0) as file:
        piece = 1 << 16
        while piece >= 512:
            try:
                os.write(file.fileno(), bytes(piece))
            except OSError:
                piece //= 2
        file.truncate(max(file.tell() - leave_bytes, 0))
    return filler
