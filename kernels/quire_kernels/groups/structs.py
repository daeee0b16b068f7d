"""The structs of a group: the C++ structs of the same names in `csrc/groups/member.hpp`."""

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
        ("peers", c_void_p),
    )


class Heading(ctypes.Structure):
    """What precedes the numbers of a message between two ranks."""

    __slots__ = ()
    _fields_ = (("announced", c_uint64), ("bytes", c_uint64))


class Peers(ctypes.Structure):
    """Connections of one rank to the others of a group without shared memory."""

    __slots__ = ()
    _fields_ = (("sockets", c_int32 * MAX_RANKS), ("early", Heading * MAX_RANKS))
