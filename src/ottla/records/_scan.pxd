# The C types of _scan.py, for where it is compiled (hatch_build.py). Offsets and times stay Python integers, so that
# sums cannot wrap and both twins agree on hostile bytes.

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
