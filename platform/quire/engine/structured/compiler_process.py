"""The program of a process that compiles grammars for a back end that cannot bound its work; it may be killed.

Requests and replies are pickles in frames (`quire.isolation.child_process`). The first request is a pair of the back
end's `build` and its context; each later one is a constraint and a time limit in seconds. The reply is the result of
`compile_in_worker`, or its error.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quire.errors import QuireError, UnsupportedConstraint
from quire.isolation.child_process import frame, read_frame
from quire.isolation.idle_thread import run_when_idle

START_NICENESS = 5
"""Gives a third of the CPU share of a thread of the steps."""
KILL_GRACE_S = 5.0
"""Time after the limit of a request in which the parent kills this process. Then it exits."""


@dataclass(frozen=True)
class VocabularySnapshot:
    """What grammar back ends read of a tokenizer, as data that can be pickled. texts: the bytes of each id."""

    vocab: Mapping[str, int]
    texts: tuple[bytes, ...]
    special_ids: frozenset[int]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> VocabularySnapshot:
        """The snapshot of a `quire.text.tokenizer.tokenizer.Tokenizer`."""
        texts = tuple(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
        return cls(dict(tokenizer.vocab), texts, frozenset(tokenizer.special_ids))

    @property
    def vocab_size(self) -> int:
        """1 + the largest id."""
        return len(self.texts)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text."""
        return self.texts[token_id]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Always empty: a snapshot cannot tokenize, and compiling does not depend on it."""
        return []


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space to what is in use now and `memory_bytes` more."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _start(build: Any, context: Any) -> Any:
    """The back end, ready to compile, in a process that then has idle priority and limited memory.

    Only the start has a share of the CPU: it is short and requests wait for it, even on a machine that stays busy.
    """
    os.nice(START_NICENESS)
    compiler = build(context)
    compiler.warm_up()
    run_when_idle()
    _limit_memory(int(sys.argv[1]))
    return compiler


def _reply_to(compiler: Any, asked: Any, timeout_s: float) -> bytes:
    """The pickled result or error. Exits the process if the parent fails to kill it in time."""
    faulthandler.dump_traceback_later(timeout_s + KILL_GRACE_S, exit=True)
    try:
        return pickle.dumps(compiler.compile_in_worker(asked))
    except QuireError as error:
        return pickle.dumps(error)
    except MemoryError:
        return pickle.dumps(UnsupportedConstraint("it needs too much memory."))
    except RecursionError:
        return pickle.dumps(UnsupportedConstraint("it is nested or recurses too deeply."))
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Reply until standard input ends. Argument: limit of memory that compiling may take, in bytes."""
    replies, sys.stdout = sys.stdout.buffer, sys.stderr  # libraries must not print among the replies
    compiler: Any = None
    while (body := read_frame(sys.stdin.buffer)) is not None:
        request = pickle.loads(body)
        if compiler is None:
            compiler = _start(*request)
            reply = pickle.dumps("ready")
        else:
            reply = _reply_to(compiler, *request)
        replies.write(frame(reply))
        replies.flush()


if __name__ == "__main__":
    main()
