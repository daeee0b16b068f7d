"""Work in several threads that each call torch, or C++ functions, for themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_Part = TypeVar("_Part")


def for_each(work: Callable[[_Part], None], parts: Iterable[_Part]) -> None:
    """Call `work` for each part, in as many threads as torch uses; raises what it raises.

    torch's own threads wait for each other after each of many small operations, which takes far longer than the
    operations where other processes use the same cores. In these threads, an operation of torch has one thread.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, parts):
                pass
    finally:
        torch.set_num_threads(threads)  # the last call also sets it for threads that start later
