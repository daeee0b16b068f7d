"""When pages get their memory in advance: while memory is plentiful and nothing asks to stop."""

from collections.abc import Callable
from threading import Event

import pytest

from quire.engine.memory import prefault as module
from quire.engine.memory.prefault import prefault

GIB = 1 << 30


class Pages:
    """A runner, and its KV cache, with ten pieces of memory; `num_taken` are there."""

    def __init__(self, after_each: Callable[[int], None] = lambda count: None) -> None:
        self.num_taken, self._after_each, self.kv = 0, after_each, self

    def prefault(self, going_on: Callable[[], bool]) -> None:
        while self.num_taken < 10 and going_on():
            self.num_taken += 1
            self._after_each(self.num_taken)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    monkeypatch.setattr(module, "CHECK_EVERY", 1)
    memory = {"free": 16 * GIB}
    monkeypatch.setattr(module, "free_bytes", lambda: memory["free"])
    monkeypatch.setattr(module, "total_bytes", lambda: 24 * GIB)
    return memory


def test_all_memory_is_taken_where_there_is_plenty(machine: dict[str, int]) -> None:
    pages = Pages()
    prefault(pages, Event(), lambda: False)  # type: ignore[arg-type]
    assert pages.num_taken == 10


def test_it_ends_when_less_than_half_of_the_machine_is_free(machine: dict[str, int]) -> None:
    pages = Pages(lambda count: machine.update(free=machine["free"] - GIB))
    prefault(pages, Event(), lambda: False)  # type: ignore[arg-type]
    assert pages.num_taken == 4


def test_it_ends_when_it_is_asked_to(machine: dict[str, int]) -> None:
    stopping = Event()
    pages = Pages(lambda count: stopping.set() if count == 3 else None)
    prefault(pages, stopping, lambda: False)  # type: ignore[arg-type]
    assert pages.num_taken == 3
