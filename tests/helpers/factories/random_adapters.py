"""Two made-up kinds of adapter: SCALE multiplies outputs of projections, SHIFT adds to them; and a kit with both."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire import AdapterRuntime
from quire.errors import BadRequest
from quire.hooks import registry
from quire.records import AdapterMetadata, AdapterUses, Context, Registry
from quire.types import Plan
from quire_models.modules.projection import projections

SIZES = {"q_proj": 64, "v_proj": 32, "o_proj": 64}


class Elementwise:
    """A table [slots, outputs] per projection. It records its calls and raises in those that `fails` names."""

    neutral: float

    def __init__(self, context: Context) -> None:
        self.names = context.names
        self.asked: list[str] = []
        self.fails = ""
        self.hold = threading.Event()
        self.hold.set()
        self.changed = threading.Condition()
        self.at: list[Any] = [None] * context.max_slots
        self.held: set[str] = set()

    def ask(self, what: str) -> None:
        with self.changed:
            self.asked.append(what)
            self.changed.notify_all()
        if what.split(maxsplit=1)[0] == self.fails:
            raise ArithmeticError("out of order")

    def wait_for(self, what: str, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked.count(what) >= times, 60)
        assert self.asked.count(what) == times

    def attach(self, model: Any) -> None:
        self.ask("attach")
        self.tables: dict[str, tuple[Tensor, slice]] = {}
        for path, (projection, rows) in projections(model).items():
            if path.rpartition(".")[2] in ("q", "v", "o"):
                if projection.delta is None:
                    table = torch.full((len(self.at), projection.outputs), self.neutral)
                    projection.delta = partial(self.delta, table)
                self.tables[path] = projection.delta.args[0], rows or slice(None)  # type: ignore[attr-defined]

    def change(self, y: Tensor, by: Tensor) -> Tensor:
        raise NotImplementedError

    def delta(self, table: Tensor, y: Tensor, x: Tensor, adapters: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        for tokens, slots, weights in adapters:  # the first adapter of each token, then its second, …
            y[tokens] = self.change(y[tokens], self.neutral + weights * (table[slots] - self.neutral))
        return y

    def load(self, name: str, path: Path) -> Any:
        self.ask(f"load {name}")
        assert self.hold.wait(60)
        vectors = {self.names.rename(key): vector for key, vector in load_file(path / "vectors.safetensors").items()}
        for ours in vectors:
            if ours not in self.tables:
                raise BadRequest(f"There is no {ours}.", "lora_path")
        return name, vectors

    def describe(self, adapter: Any) -> AdapterMetadata:
        name, vectors = adapter
        self.ask(f"describe {name}")
        return AdapterMetadata(num_bytes=sum(vector.nbytes for vector in vectors.values()), targets=("q_proj",))

    def acquire_slot(self, adapter: Any) -> int | None:
        name, vectors = adapter
        self.ask(f"acquire {name}")
        if not any(other is adapter for other in self.at):
            free = [i for i, other in enumerate(self.at) if other is None or id(other) not in self.held]
            if not free:
                return None
            self.at[free[0]] = adapter
            for path, (table, rows) in self.tables.items():
                table[free[0], rows] = vectors.get(path, self.neutral)
        self.held.add(id(adapter))
        return next(i for i, other in enumerate(self.at) if other is adapter)

    def release_slot(self, adapter: Any) -> None:
        self.ask(f"release_slot {adapter[0]}")
        self.held.remove(id(adapter))

    def release(self, adapter: Any) -> None:
        self.ask(f"release {adapter[0]}")
        assert id(adapter) not in self.held
        self.at = [None if other is adapter else other for other in self.at]

    def bind_step(self, plan: Plan, uses: AdapterUses) -> list[tuple[Tensor, Tensor, Tensor]]:
        self.ask("bind")
        lens = [len(chunk.token_ids) for chunk in plan.chunks]
        each = [use for use, count in zip(uses, lens, strict=True) for _ in range(count)]
        layers = []
        for depth in range(max(map(len, each))):
            found = [(token, *use[depth]) for token, use in enumerate(each) if len(use) > depth]
            tokens, slots, weights = zip(*found, strict=True)
            layers.append((torch.tensor(tokens), torch.tensor(slots), torch.tensor(weights)[:, None]))
        return layers

    def bind_logits(self, uses: AdapterUses) -> None:
        self.ask("bind_logits")


class Scale(Elementwise):
    neutral = 1.0

    def change(self, y: Tensor, by: Tensor) -> Tensor:
        return y * by


class Shift(Elementwise):
    neutral = 0.0

    def change(self, y: Tensor, by: Tensor) -> Tensor:
        return y + by


class Kit:
    """A registry with both kinds, and the runtimes that were built last."""

    def __init__(self) -> None:
        self.built: dict[str, Elementwise] = {}
        found = registry.load(None)
        hook = "quire_adapter_runtimes"
        records = {kind: AdapterRuntime(kind, frozenset({kind}), partial(self.build, kind)) for kind in KINDS}
        self.registry: Registry = replace(
            found,
            records={**found.records, hook: records},
            origin={**found.origin, **{(hook, kind): f"plugin-{kind}" for kind in KINDS}},
        )

    def build(self, kind: str, context: Context) -> Elementwise:
        self.built[kind] = KINDS[kind](context)
        return self.built[kind]

    def only(self, kind: str) -> Registry:
        hook = "quire_adapter_runtimes"
        records = {kind: self.registry.by_hook(hook)[kind]}
        return replace(self.registry, records={**self.registry.records, hook: records})


KINDS: dict[str, type[Elementwise]] = {"SCALE": Scale, "SHIFT": Shift}


def vectors_of(seed: int, neutral: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"model.layers.{layer}.self_attn.{name}": neutral + torch.randn(size, generator=generator)
        for layer in range(2)
        for name, size in SIZES.items()
    }


def write_adapter(folder: Path, kind: str, seed: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": kind}))
    save_file(vectors_of(seed, KINDS[kind].neutral), folder / "vectors.safetensors")
    return folder
