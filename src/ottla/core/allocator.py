"""Sets up the C library's allocator to return large buffers to the system as soon as they are freed."""

from __future__ import annotations

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_LARGE_BYTES = 4 << 20


def return_large_buffers() -> None:
    """Have buffers of 4 MiB or more mapped one by one. Does nothing where the C library has no such setting.

    By default glibc raises the limit to the largest buffer freed so far. Then such buffers come from the heaps of the
    threads, which keep about twice that size each.
    """
    import ctypes  # late: few brokers need it

    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    except (AttributeError, OSError, TypeError):
        return
