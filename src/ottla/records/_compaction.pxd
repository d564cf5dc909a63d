# The C types of _compaction.py, for where it is compiled (hatch_build.py). Sums that may wrap are of unsigned 64 bits, and
# masked in the source, so that both twins agree.

import cython

@cython.locals(
    mask="unsigned long long", some0="unsigned long long", some1="unsigned long long", some2="unsigned long long",
    some3="unsigned long long", v0="unsigned long long", v1="unsigned long long", v2="unsigned long long",
    v3="unsigned long long", word="unsigned long long", tail="unsigned long long", first="unsigned long long",
    left=Py_ssize_t, rounds=Py_ssize_t, turn=Py_ssize_t, many=Py_ssize_t, nth=Py_ssize_t, byte="unsigned long long",
)
cpdef (unsigned long long, unsigned long long) sip(
    bytes data, Py_ssize_t at, Py_ssize_t stop, unsigned long long key0, unsigned long long key1
) except *

@cython.locals(value="unsigned long long", low="unsigned long long", shift=int, byte="unsigned char")
cdef (long long, Py_ssize_t) varint(bytes data, Py_ssize_t at) except *

@cython.locals(at="unsigned long long", place="unsigned long long")
cdef unsigned long long slot_of(
    unsigned long long[::1] table, unsigned long long slots, unsigned long long high, unsigned long long low
) noexcept

@cython.locals(
    length="long long", stop=Py_ssize_t, delta_ms="long long", delta="long long", key_length="long long",
)
cdef (Py_ssize_t, long long, long long, long long, Py_ssize_t) head(
    bytes data, Py_ssize_t at, Py_ssize_t end
) except *

@cython.locals(
    taken=Py_ssize_t, new=Py_ssize_t, last="long long", begin=Py_ssize_t, stop=Py_ssize_t, _delta_ms="long long",
    delta="long long", key_length="long long", offset="long long", high="unsigned long long",
    low="unsigned long long", place="unsigned long long",
)
cpdef note_keys(
    bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, long long base_offset, long long first_offset,
    unsigned long long[::1] table, unsigned long long slots, Py_ssize_t capacity,
    unsigned long long key0, unsigned long long key1, object digest,
)

@cython.locals(
    at=Py_ssize_t, place="unsigned long long", found="unsigned long long", high="unsigned long long",
    low="unsigned long long",
)
cpdef move_slots(
    unsigned long long[::1] table, Py_ssize_t first, Py_ssize_t end, unsigned long long[::1] into,
    unsigned long long slots,
)

@cython.locals(
    kept=Py_ssize_t, tombstones=Py_ssize_t, keyless=Py_ssize_t, first_ms="long long", greatest_ms="long long",
    run=Py_ssize_t, _=Py_ssize_t, stop=Py_ssize_t, delta_ms="long long", delta="long long", key_length="long long",
    begin=Py_ssize_t, value_length="long long", value=Py_ssize_t, offset="long long", stays=bint,
    high="unsigned long long", low="unsigned long long",
)
cpdef choose(
    bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, long long base_offset, long long latest_offset,
    bint drops_tombstones, unsigned long long[::1] table, unsigned long long slots,
    unsigned long long key0, unsigned long long key1, object digest, list extents,
)

@cython.locals(
    mask="unsigned long long", out=bytearray, turn=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, length="long long",
    stop=Py_ssize_t, attributes=Py_ssize_t, delta_ms="long long", moved="unsigned long long",
    zigzag="unsigned long long", size=Py_ssize_t, rest="unsigned long long",
)
cpdef bytearray shifted(bytes data, list extents, unsigned long long shift_ms)

cdef int put(bytearray out, unsigned long long number) except -1
