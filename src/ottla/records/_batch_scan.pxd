# The C types of _batch_scan.py, for where it is compiled (hatch_build.py). Both twins do the same sums: offsets and lengths are
# compared before they are added, so nothing wraps.

import cython

@cython.locals(
    size=Py_ssize_t, base="long long", length="long long", of_epoch="long long", magic=int, crc="unsigned long long",
    attributes=int, delta="long long", newest="long long", producer_id="long long", last="long long",
)
cpdef tuple check_into(
    object data,
    Py_ssize_t at,
    Py_ssize_t available,
    long long next_offset,
    long long epoch,
    bint gaps,
    long long offset_max,
    long long interval,
    long long since,
    long long greatest,
    long long greatest_offset,
    object crc32c,
    list entries,
    list epochs,
    list producers,
)
