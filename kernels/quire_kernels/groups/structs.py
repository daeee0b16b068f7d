"""The struct of a group's member: the C++ struct of the same name in `csrc/groups/all_reduce.hpp`."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint64, c_void_p

MAX_THREADS = 64
MAX_RANKS = 64


class Member(ctypes.Structure):
    """One rank's handle of the memory that a group shares."""

    __slots__ = ()
    _fields_ = (
        ("shared", c_void_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("threads", c_int32),
        ("state", c_int32),
        ("slot_bytes", c_int64),
        ("timeout_ms", c_int64),
        ("spins", c_int64),
        ("attempt", c_uint64),
        ("rounds", c_uint64 * MAX_THREADS),
    )
