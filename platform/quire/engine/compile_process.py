"""A process that compiles grammars for a back end that cannot bound what that takes: it may be ended at any time.

It reads pickles from standard input, first a pair of a back end's `build` and its context, then the name of a method,
a constraint and the seconds that it may take. What comes of each, or the error, goes to standard output. Before each
pickle stands its length.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from quire.errors import CannotConstrain, QuireError
from quire.idle_thread import run_when_idle

LENGTH = struct.Struct(">Q")
START_NICENESS = 5
"""A third of the share that a thread of the steps has."""
LINGER_S = 5.0
"""Time that whoever asked has to end the process."""


@dataclass(frozen=True)
class PlainVocabulary:
    """What grammar back ends read of a tokenizer, as plain data. texts: the bytes of each id."""

    vocab: Mapping[str, int]
    texts: tuple[bytes, ...]
    special_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Any) -> PlainVocabulary:
        """That of a `quire.text.tokenizer.Tokenizer`."""
        texts = tuple(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
        return cls(dict(tokenizer.vocab), texts, frozenset(tokenizer.special_ids))

    @property
    def vocab_size(self) -> int:
        """1 + the largest id."""
        return len(self.texts)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text."""
        return self.texts[token_id]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """No ids: how a tokenizer cuts a text is not plain data, and nothing that is compiled here depends on it."""
        return []


def frame(body: bytes) -> bytes:
    """Bytes with their length before them."""
    return LENGTH.pack(len(body)) + body


def _read(stream: BinaryIO) -> Any:
    """The next pickle. Raises EOFError."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    return pickle.loads(stream.read(length))


def _bound_memory(memory_bytes: int) -> None:
    """Take no more than so much memory beside what there is."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _started(build: Any, context: Any) -> Any:
    """The back end, ready to compile, in a process that takes a core only where no other wants it.

    Its start is short and waited for, so that it has a share of the cores even on a machine that is busy for long.
    """
    os.nice(START_NICENESS)
    compiler = build(context)
    compiler.warm_up()
    run_when_idle()
    _bound_memory(int(sys.argv[1]))
    return compiler


def _reply(compiler: Any, method: str, asked: Any, timeout_s: float) -> bytes:
    """What comes of a constraint, pickled. The process ends itself should nobody be left to end it in time."""
    faulthandler.dump_traceback_later(timeout_s + LINGER_S, exit=True)
    try:
        return pickle.dumps(getattr(compiler, method)(asked))
    except QuireError as error:
        return pickle.dumps(error)
    except MemoryError:
        return pickle.dumps(CannotConstrain("it needs too much memory."))
    except RecursionError:
        return pickle.dumps(CannotConstrain("it is nested or recurses too deeply."))
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Serve until standard input ends. Argument: the most memory in bytes that compiling may take."""
    replies, sys.stdout = sys.stdout.buffer, sys.stderr  # what libraries print is no reply
    compiler: Any = None
    with suppress(EOFError):
        while True:
            asked = _read(sys.stdin.buffer)
            if compiler is None:
                compiler = _started(*asked)
                reply = pickle.dumps("ready")
            else:
                reply = _reply(compiler, *asked)
            replies.write(frame(reply))
            replies.flush()


if __name__ == "__main__":
    main()
