# The C types of _record_validator.py, for where it is compiled (hatch_build.py). Positions are compared before bytes are read,
# and sums of times before they are added, so that both twins agree on hostile bytes.

import cython

@cython.locals(value="unsigned int", low="unsigned int", shift=int, byte="unsigned char")
cdef inline (int, Py_ssize_t) read_int(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t stop) except *

@cython.locals(value="unsigned long long", low="unsigned long long", shift=int, byte="unsigned char")
cdef inline (long long, Py_ssize_t) read_long(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t stop) except *

@cython.locals(length=int)
cdef inline Py_ssize_t skip_bytes(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t stop) except -1

cdef inline long long time_after(long long base_timestamp, long long delta_ms) except? -1

@cython.locals(count=int, name_bytes=int, _=int)
cdef inline Py_ssize_t skip_headers(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t stop) except -1

@cython.locals(
    size=Py_ssize_t, place=Py_ssize_t, length=int, end=Py_ssize_t, delta=int, delta_ms="long long",
    timestamp="long long", key_bytes=int,
)
cpdef (Py_ssize_t, long long) validate_into(
    const unsigned char[::1] data,
    Py_ssize_t at,
    Py_ssize_t first,
    Py_ssize_t count,
    long long base_timestamp,
    long long oldest_ms,
    long long newest_ms,
    bint keyed,
    long long greatest_ms,
    list faults,
    Py_ssize_t faults_max,
    Py_ssize_t size_max,
) except *
