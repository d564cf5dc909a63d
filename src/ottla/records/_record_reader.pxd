# The C types of _record_reader.py, for where it is compiled (hatch_build.py). In `scan_into` offsets and times stay Python
# integers, so that sums cannot wrap and both twins agree on hostile bytes; `places_into` checks before it adds.

import cython

@cython.locals(value="unsigned long long", low="unsigned long long", shift=int, byte="unsigned char")
cdef (long long, Py_ssize_t) varint(bytes data, Py_ssize_t at) except *

@cython.locals(
    size=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, length="long long", delta="long long", delta_ms="long long",
    wanted=bint, _=Py_ssize_t,
)
cpdef scan_into(
    bytes data,
    Py_ssize_t count,
    object base_offset,
    object base_timestamp,
    object first_offset,
    object end_offset,
    list offsets,
    list timestamps,
    list keys,
    list values,
    list headers,
)

@cython.locals(length="long long")
cdef Py_ssize_t _slice_into(bytes data, Py_ssize_t at, Py_ssize_t stop, list found) except -1

@cython.locals(count="long long", length="long long", _="long long", pairs=list, value=list, name=bytes)
cdef Py_ssize_t _headers_into(bytes data, Py_ssize_t at, Py_ssize_t stop, list found) except -1

@cython.locals(value="unsigned long long", low="unsigned long long", shift=int, byte="unsigned char")
cdef (long long, Py_ssize_t) bounded_varint(const unsigned char* data, Py_ssize_t at, Py_ssize_t stop) except *

@cython.locals(
    source="const unsigned char*", capacity=Py_ssize_t, end=Py_ssize_t, length="long long", delta="long long",
    delta_ms="long long", offset="long long", wanted=bint, part=int, _=Py_ssize_t,
)
cpdef (Py_ssize_t, Py_ssize_t) places_into(
    bytes data,
    Py_ssize_t at,
    Py_ssize_t stop,
    Py_ssize_t count,
    long long base_offset,
    long long base_timestamp,
    long long first_offset,
    long long end_offset,
    int parts,
    long long[::1] offsets,
    long long[::1] timestamps,
    int[::1] slots,
    int[::1] edges,
    list headers,
    Py_ssize_t filled,
    Py_ssize_t edged,
) except *

cdef long long _sum(long long base, long long delta) except? -1

@cython.locals(count="long long", name_bytes="long long", value_bytes="long long", name_at=Py_ssize_t, _="long long")
cdef Py_ssize_t _header_places(const unsigned char* data, Py_ssize_t at, Py_ssize_t stop, list headers) except -1
