"""Makes the machine's free memory ready before a measurement.

The host of a virtual machine may provide each page of memory only when the page is first touched, and take pages back
that have been free for seconds. Then the program that needs memory next pays for it: ten times what a page costs
otherwise on the machine of docs/benchmarks.md, more than anything that a broker does with a bulk batch. Touching free
memory before each turn leaves the brokers' own cost.
"""

from __future__ import annotations

import mmap
import time

PAGE_BYTES = mmap.PAGESIZE
GIB = 1 << 30


def touch(size: int) -> float:
    """Touch so many bytes of free memory and free them again; returns the microseconds per page that it took."""
    began = time.perf_counter()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    with mmap.mmap(-1, size, flags=flags):
        took = time.perf_counter() - began
    return took / (size // PAGE_BYTES) * 1e6
