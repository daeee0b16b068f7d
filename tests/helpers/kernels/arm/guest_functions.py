"""The functions of the C++ ops on an emulated CPU, which shares this process's heap (`shared_heap.cpp`)."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

NUM_ARGUMENTS = 10


class GuestFunctions:
    """Stands in the place of a `ctypes.CDLL`; command: the emulator with its options and the program `guest.cpp`."""

    def __init__(self, command: list[str], ops: Path) -> None:
        heap = ctypes.CDLL(None)
        heap.shared_heap_base.restype, heap.shared_heap_size.restype = ctypes.c_void_p, ctypes.c_size_t
        memory = f"/proc/{os.getpid()}/fd/{heap.shared_heap_file()}"
        where = [memory, str(heap.shared_heap_base()), str(heap.shared_heap_size())]
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        self._process = subprocess.Popen(
            [*command, str(ops), *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __getattr__(self, name: str) -> GuestFunction:
        function = GuestFunction(self, name)
        setattr(self, name, function)
        return function

    def call(self, name: str, arguments: list[int]) -> int:
        """Call a function; raises RuntimeError if the emulator ends."""
        calls, answers = self._process.stdin, self._process.stdout
        assert calls
        assert answers
        padded = [*arguments, *[0] * (NUM_ARGUMENTS - len(arguments))]
        try:
            calls.write(f"{name} {' '.join(map(str, padded))}\n")
            calls.flush()
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the emulated CPU ended in {name} with status {self._process.wait()}")
        return int(answer)


class GuestFunction:
    """One function; `restype` and `argtypes` are those of ctypes."""

    def __init__(self, functions: GuestFunctions, name: str) -> None:
        self._functions, self._name = functions, name
        self.restype: Any = ctypes.c_int
        self.argtypes: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> int | None:
        assert len(arguments) == len(self.argtypes), self._name
        found = self._functions.call(self._name, [_as_integer(argument) for argument in arguments])
        return None if self.restype is None else int(self.restype(found).value)


def _as_integer(argument: Any) -> int:
    """An integer, or the address of what ctypes would pass a pointer to."""
    if argument is None:
        return 0
    if isinstance(argument, int):
        return argument if argument < 1 << 63 else argument - (1 << 64)
    return ctypes.cast(argument, ctypes.c_void_p).value or 0
