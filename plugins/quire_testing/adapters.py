"""Conformance of adapter runtimes, on a tiny model, and of hooks that resolve names of adapters."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel, load_model
from quire.errors import BadRequest
from quire.hooks.adapter_resolver import CONFIG_FILE
from quire.hooks.registry import load
from quire.records import AdapterMetadata, AdapterRuntime, AdapterRuntimeImpl, AdapterSource, Context
from quire.settings.model_config import ModelConfig
from quire.types import Chunk, Plan
from quire_models.testing import ChunkSpec, ModelDriver
from quire_testing.require import require

LENGTHS = (7, 19, 5, 1)
"""Tokens of the sequences of the batch; the first and the last use no adapter."""

ON_ITS_WAY_S = 10.0
"""How long `acquire_slot` may return None while an adapter is copied to the device."""

UNKNOWN = ("no-such-adapter", "owner/no-such-adapter", "x" * 128, "with space", "ümlaut", "~", "$HOME", "%2e%2e")
"""Names that clients may send, and that belong to no adapter."""


def check_adapter_runtime(
    record: AdapterRuntime,
    adapters: Sequence[Path],
    model: Path,
    *,
    plugins: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    tolerance: float = 1e-4,
) -> None:
    """Adapters change the rows that use them and no others, in whichever slot they are.

    adapters: at least two folders of adapters for `model`, a folder such as that of `tiny_llama`. plugins: those that
    load the model. tolerance: the largest difference, relative to the largest logit, between a sequence alone and in
    a batch.
    """
    require(len(adapters) >= 2, "At least two adapters are needed, to have both in one batch.")
    bench = _Bench(load_model(ModelConfig(model=str(model), dtype="float32", device="cpu"), load(plugins)))
    plain = bench.logits([None] * len(LENGTHS))
    context = Context(options=options or {}, names=bench.loaded.names, device="cpu", max_slots=len(adapters))
    runtime = bench.runtime = record.build(context)
    runtime.attach(bench.loaded.module)
    loaded = [runtime.load(f"adapter-{i}", path) for i, path in enumerate(adapters)]
    copy = runtime.load("copy", adapters[0])
    for adapter in loaded:
        _check_metadata(runtime, adapter)
    _check_bad_folder(runtime)

    slots = [bench.slot(adapter) for adapter in loaded]
    require(sorted(slots) == list(range(len(slots))), f"{len(slots)} adapters must have as many slots; got {slots}.")
    require(runtime.acquire_slot(copy) is None, "acquire_slot must return None when all slots are in use.")
    batch = [None, slots[0], slots[1], None]
    mixed = bench.logits(batch)
    _check_base(mixed, plain, batch, "beside rows that do")
    for i in (1, 2):
        require(not torch.allclose(mixed[i], plain[i]), f"{adapters[i - 1]} changes no logits.")
        _close(bench.alone(i, batch[i]), mixed[i], "Logits depend on the other sequences of the batch", tolerance)
        again = bench.logits(batch)[i]
        require(torch.equal(again, mixed[i]), "The same step has other logits the second time.")

    runtime.release_slot(loaded[1])
    require(bench.slot(loaded[1]) == slots[1], "An adapter whose weights are in a slot must get that slot again.")
    runtime.release_slot(loaded[1])
    other = bench.slot(copy)
    require(other == slots[1], f"The free slot is {slots[1]}; acquire_slot gave {other}.")
    moved = bench.logits([None, other, slots[0], None])
    _check_base(moved, plain, batch, "after an adapter took another's slot")
    _close(moved[1], mixed[1], "An adapter has other logits in another's slot", tolerance)

    for adapter in (loaded[0], copy):
        runtime.release_slot(adapter)
    for adapter in (*loaded, copy):
        runtime.release(adapter)
    _check_base(bench.logits([None] * len(LENGTHS)), plain, [None] * len(LENGTHS), "after all adapters were released")


@dataclass
class _Bench:
    """A tiny model and sequences of random tokens, the same each time. held: the adapter of each slot."""

    loaded: LoadedModel
    runtime: AdapterRuntimeImpl | None = None
    held: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        vocab = self.loaded.decoder.vocab
        self.seqs = [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in LENGTHS]

    def slot(self, adapter: Any) -> int:
        """The slot that the runtime gives an adapter."""
        assert self.runtime is not None, "it was built"
        slot = _slot(self.runtime, adapter)
        self.held[slot] = adapter
        return slot

    def logits(self, slots: Sequence[int | None]) -> list[Tensor]:
        """Logits [tokens, vocab] of each sequence, all in one step; slots[i]: of the adapter of sequence i."""
        return self._run(self.seqs, slots)

    def alone(self, i: int, slot: int | None) -> Tensor:
        """Logits of one sequence in a step of its own."""
        return self._run([self.seqs[i]], [slot])[0]

    @torch.inference_mode()
    def _run(self, seqs: Sequence[list[int]], slots: Sequence[int | None]) -> list[Tensor]:
        module: Any = self.loaded.module
        uses = [() if slot is None else ((slot, 1.0),) for slot in slots]
        whole = [[0] * self._about(slot).virtual_tokens + ids for slot, ids in zip(slots, seqs, strict=True)]
        driver = ModelDriver(module, self.loaded.decoder, whole)
        for i, slot in enumerate(slots):
            runtime: Any = self.runtime
            if slot is not None and self._about(slot).has_virtual_kv:
                runtime.store_virtual(self.held[slot], driver.kv, driver.skip(i, len(whole[i]) - len(seqs[i])))
        starts = list(driver.computed)
        counts = [len(ids) - start for ids, start in zip(whole, starts, strict=True)]
        forward, bound = driver.forward([ChunkSpec(i, count) for i, count in enumerate(counts)]), None
        if self.runtime is not None and any(uses):
            chunks = [Chunk(i, starts[i], ids[starts[i] :], (), False) for i, ids in enumerate(whole)]
            forward.adapters = self.runtime.bind_step(Plan(chunks=tuple(chunks)), uses)
        hidden = module(forward).clone()
        if self.runtime is not None and any(uses):
            bound = self.runtime.bind_logits([use for use, n in zip(uses, counts, strict=True) for _ in range(n)])
        found = module.logits(hidden, bound).split(counts)
        return [logits[-len(ids) :] for logits, ids in zip(found, seqs, strict=True)]

    def _about(self, slot: int | None) -> AdapterMetadata:
        """Facts about the adapter in a slot."""
        if slot is None or self.runtime is None:
            return AdapterMetadata(num_bytes=0)
        return self.runtime.describe(self.held[slot])


def _check_metadata(runtime: AdapterRuntimeImpl, adapter: Any) -> None:
    about: object = runtime.describe(adapter)
    require(isinstance(about, AdapterMetadata), f"describe must return AdapterMetadata; got {about!r:.80}.")
    facts = runtime.describe(adapter)
    require(facts.num_bytes > 0, "num_bytes must be the size in memory, above 0.")
    count: object = facts.virtual_tokens
    require(type(count) is int and count >= 0, f"virtual_tokens must be a number of tokens; got {count!r:.80}.")
    if facts.has_virtual_kv:
        require(count, "has_virtual_kv says that virtual tokens are not computed; virtual_tokens must be above 0.")
        require(hasattr(runtime, "store_virtual"), "A runtime with has_virtual_kv must have the method store_virtual.")


def _slot(runtime: AdapterRuntimeImpl, adapter: Any) -> int:
    end = time.monotonic() + ON_ITS_WAY_S
    while (slot := runtime.acquire_slot(adapter)) is None:
        require(time.monotonic() < end, f"acquire_slot returned None for {ON_ITS_WAY_S:g} s although a slot is free.")
        time.sleep(0.01)
    return slot


def _check_base(found: Sequence[Tensor], plain: Sequence[Tensor], slots: Sequence[int | None], when: str) -> None:
    for a, b, slot in zip(found, plain, slots, strict=True):
        same = slot is not None or torch.equal(a, b)
        require(same, f"Rows without an adapter have other logits {when}; they must stay equal bit for bit.")


def _close(found: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    error = ((found - expected).abs().max() / expected.abs().max().clamp(min=1.0)).item()
    require(error <= tolerance, f"{what}: by up to {error:.2g} of the largest.")


def _check_bad_folder(runtime: AdapterRuntimeImpl) -> None:
    with TemporaryDirectory() as folder:
        Path(folder, CONFIG_FILE).write_text("{}")
        try:
            runtime.load("broken", Path(folder))
        except BadRequest:
            return
        except Exception as error:
            raise AssertionError(f"load must raise BadRequest for a folder without weights; got {error!r}.") from error
    raise AssertionError("load must raise BadRequest for a folder without weights.")


def check_adapter_source(
    resolve: Callable[..., AdapterSource | None],
    known: Sequence[str],
    *,
    base_model: str = "base",
    options: Mapping[str, Any] | None = None,
) -> None:
    """An implementation of `quire_resolve_adapter` finds the known names, and nothing for any other name.

    known: names of adapters that it finds. Other names give None, or raise BadRequest.
    """
    with TemporaryDirectory() as cache:
        given = {"base_model": base_model, "cache_dir": Path(cache), "options": options or {}}
        taken = inspect.signature(resolve).parameters

        def ask(name: str) -> AdapterSource | None:
            return resolve(**{key: value for key, value in {"name": name, **given}.items() if key in taken})

        for name in known:
            source: object = ask(name)
            if not isinstance(source, AdapterSource):
                raise AssertionError(f"{name!r} must be found as an AdapterSource; got {source!r:.80}.")
            require((source.path / CONFIG_FILE).is_file(), f"{source.path} has no {CONFIG_FILE}.")
            require(isinstance(source.revision, str) and source.revision, "The revision must be a text, not empty.")
            require(source == ask(name), f"{name!r} is found elsewhere, or as another revision, the second time.")
        for name in UNKNOWN:
            try:
                found = ask(name)
            except BadRequest:
                continue
            require(found is None, f"{name!r:.40} is no adapter; got {found!r:.120}.")
