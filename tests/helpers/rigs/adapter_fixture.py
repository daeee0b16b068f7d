"""Adapters on no model, with a runtime that only keeps account: which sit, wait, stay in memory and come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.adapters.engine_adapters import EngineAdapters
from quire.errors import BadRequest, QuireError
from quire.isolation.isolated_calls import IsolatedCalls
from quire.params.sampling import SamplingParams
from quire.records import AdapterMetadata, AdapterRuntime, AdapterUses, Context, Registry
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Plan, Prompt, Request, WeightedAdapter
from quire.types.adapter_info import AdapterInfo


class Account:
    """A runtime without weights: an adapter is its name and number. It checks that it is asked in order."""

    def __init__(self, context: Context) -> None:
        self.free = set(range(context.max_slots))
        self.held: dict[str, int] = {}
        self.asked: list[str] = []
        self.live: set[str] = set()
        self.most_live = self.number = 0
        self.held_back: dict[str, threading.Event] = {}
        self.bad: set[str] = set()
        self.out_of_order = False
        self.changed = threading.Condition()

    def note(self, what: str) -> None:
        with self.changed:
            self.asked.append(what)
            self.changed.notify_all()

    def wait_for(self, what: str, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked.count(what) >= times, 60), (what, self.asked)

    def attach(self, model: Any) -> None:
        pass

    def load(self, name: str, path: Path) -> str:
        self.note(f"load {name}")
        if name in self.held_back:
            assert self.held_back[name].wait(60)
        if name in self.bad:
            raise BadRequest(f"{name} is bad.", "lora_path")
        with self.changed:
            self.number += 1
            loaded = f"{name}#{self.number}"
            self.live.add(loaded)
            self.most_live = max(self.most_live, len(self.live))
        return loaded

    def describe(self, adapter: str) -> AdapterMetadata:
        return AdapterMetadata(num_bytes=100, rank=128 if adapter.startswith("wide") else 8, targets=("q_proj",))

    def acquire_slot(self, adapter: str) -> int | None:
        assert adapter in self.live
        assert adapter not in self.held
        if self.out_of_order:
            raise ArithmeticError("out of order")
        if not self.free:
            return None
        self.held[adapter] = min(self.free)
        self.free.remove(self.held[adapter])
        return self.held[adapter]

    def release_slot(self, adapter: str) -> None:
        self.free.add(self.held.pop(adapter))

    def release(self, adapter: str) -> None:
        with self.changed:
            assert adapter not in self.held
            self.live.remove(adapter)
        self.note(f"release {adapter.partition('#')[0]}")

    def bind_step(self, plan: Plan, uses: AdapterUses) -> Any:
        return tuple(uses)

    def bind_logits(self, uses: AdapterUses) -> Any:
        return tuple(uses)


class Bench:
    """Adapters on no model, with requests that begin as soon as they may and end when a test says so."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        hook = "quire_adapter_runtimes"
        record = AdapterRuntime("account", frozenset({"ACCOUNT"}), self._build)
        registry = Registry(records={hook: {"account": record}}, origin={(hook, "account"): "plugin-account"})
        self.config = ModelConfig(**{"max_loras": 1, "max_cpu_loras": 4, **config})
        context = Context(max_slots=self.config.max_loras)
        runtimes = AttachedRuntimes(registry, lambda _: context, nn.Module())
        self.adapters = EngineAdapters(runtimes, self.config, "base", IsolatedCalls(60.0))
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.errors: dict[str, QuireError] = {}
        self.begun: list[str] = []
        self._numbers = 0

    def _build(self, context: Context) -> Account:
        self.runtime = Account(context)
        return self.runtime

    def folder(self, name: str, content: str = "") -> Path:
        file, text = self.root / name / "adapter_config.json", json.dumps({"peft_type": "ACCOUNT", "content": content})
        file.parent.mkdir(exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        return file.parent

    def load(self, *names: str, **options: Any) -> None:
        for name in names:
            self.adapters.registry.load(name, self.folder(name), **options).result(60)

    def ask(self, *names: str) -> str:
        self._numbers += 1
        request = Request(
            id=f"{'+'.join(names)}-{self._numbers}",
            prompt=Prompt(token_ids=(1,)),
            params=SamplingParams(),
            adapters=tuple(WeightedAdapter(AdapterRef(name=name)) for name in names),
        )
        with self.adapters.acquire(request) as entered:
            self.waiting[request.id] = entered
        return request.id

    def look(self) -> list[str]:
        """What a planner does: ask for the waiting in order, pass those who may not begin. Who began."""
        began, closed = [], set()
        for request_id, request in list(self.waiting.items()):
            runtime_index = tuple(use.ref for use in request.adapters)
            if runtime_index in closed:
                continue
            try:
                ready = self.adapters.try_admit(request)
            except QuireError as error:
                self.errors[request_id] = error
                del self.waiting[request_id]
                self.adapters.release(request_id)
                continue
            if ready:
                self.running[request_id] = self.waiting.pop(request_id)
                began.append(request_id)
            else:
                closed.add(runtime_index)
        self.begun += began
        return began

    def look_until(self, request_id: str) -> None:
        """Look while adapters are read in the background, until a request has begun or failed."""
        for _ in range(1000):
            self.look()
            if request_id in self.running or request_id in self.errors:
                return
            self.settle()
        raise AssertionError(f"{request_id} never began")

    def settle(self) -> None:
        """Wait until nothing is being read or let go of any more."""
        reader = self.adapters._loader
        marks = threading.Barrier(3)
        for _ in range(2):  # both threads that read have to come here, so all before is done
            reader._threads.submit(marks.wait, 60)
        marks.wait(60)
        reader._freeing.submit(int).result(60)

    def end(self, request_id: str) -> None:
        self.running.pop(request_id, None) or self.waiting.pop(request_id)
        self.adapters.release(request_id)

    def tiers(self) -> dict[str, str | None]:
        return {info.name: info.tier for info in self.infos()}

    def states(self) -> dict[str, str]:
        return {info.name: info.state for info in self.infos()}

    def infos(self) -> list[AdapterInfo]:
        return self.adapters.registry.infos()


@contextmanager
def benches_in(root: Path) -> Iterator[Any]:
    """What makes benches with adapters in one folder; all are closed at the end."""
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(Bench(root, **config))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.adapters.close()
