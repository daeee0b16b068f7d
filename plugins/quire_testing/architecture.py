"""Conformance of architectures: a tiny random checkpoint is loaded like any model and compared with transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel, load_model
from quire.errors import PluginError
from quire.hooks.discovery import DISTRIBUTION, installed
from quire.hooks.registry import load
from quire.records import Architecture, Registry
from quire.settings.model_config import ModelConfig
from quire_models.loading import checkpoint
from quire_models.testing import ChunkSpec, run_tokens
from quire_testing.require import require
from quire_testing.tiny import SIZES, byte_tokenizer, reference_model, save

LENGTHS = (41, 7, 1, 23)
"""Lengths of the sequences: one is longer than several pages, one has a single token."""


Reference: TypeAlias = Callable[[Path], Callable[[Tensor], Tensor]]
"""Writes a tiny model into a folder, as `check_architecture` describes, and returns a function that computes it."""


def check_architecture(
    architecture: str | Architecture,
    *,
    plugin: str | None = None,
    reference: Reference | None = None,
    attention: str = "eager",
    tolerance: float = 1e-4,
    seed: int = 0,
    device: str = "cpu",
    **overrides: Any,
) -> None:
    """Float32 logits of a tiny random model equal the reference's at every position, and depend on nothing else.

    architecture: a record, or its name; then `plugin` (or, without it, any installed plugin) must provide it. Other
    records of the plugin are loaded too, in particular its operations; for a record, name its `plugin` if it needs
    them.
    reference: for models that transformers does not have, a function that writes config.json and the weights of a tiny
    model into a given folder, and returns a function from token ids [1, n] to logits [n, vocab]. Without it the
    reference is the class of that name in transformers, with `attention` as attn_implementation ("sdpa" where "eager"
    computes something else). overrides: settings of its config that make special features of the architecture matter at
    a small size (a short window, a wide head). This also checks that config.json becomes a decoder, and that the
    table of weight names covers every tensor of the checkpoint.
    """
    record, registry = _found(architecture, plugin)
    require(not (reference and overrides), "With a `reference`, set the config there: overrides would have no effect.")
    with TemporaryDirectory() as name:
        folder = Path(name)
        byte_tokenizer(folder)
        if reference is None:
            expected_of = _of_transformers(reference_model(record.name, seed, attention, **overrides), folder)
        else:
            expected_of = reference(folder)
        loaded = _load(record, registry, folder, device)
    seqs = _seqs(loaded.decoder.vocab, seed)
    whole = _run(loaded, seqs)
    for tokens, logits in zip(seqs, whole, strict=True):
        expected = _expected(expected_of, tokens)
        worst = (logits - expected).abs().max().item()
        source = "the reference's" if reference else "transformers'"
        require(worst <= tolerance, f"Logits of {len(tokens)} tokens differ from {source} by up to {worst:.2g}.")
    for name, steps in _chunkings(seqs).items():
        _equal(_run(loaded, seqs, steps), whole, f"logits change when the sequences are computed {name}")
    alone = [_run(loaded, [tokens])[0] for tokens in seqs]
    _equal(alone, whole, "logits depend on the other sequences of the batch")


def _of_transformers(model: Any, folder: Path) -> Callable[[Tensor], Tensor]:
    """Write a model of transformers, and return a function that computes its logits [n, vocab]."""
    save(model, folder)
    return lambda ids: model(ids, use_cache=False).logits[0]


def _found(architecture: str | Architecture, plugin: str | None) -> tuple[Architecture, Registry]:
    """The record, and the registry of its plugin."""
    if isinstance(architecture, str):
        return find(architecture, plugin)
    return architecture, load([plugin]) if plugin else Registry()


def find(name: str, plugin: str | None = None) -> tuple[Architecture, Registry]:
    """The architecture of that name in one plugin, or in any installed plugin, and the registry that has it.

    Raises AssertionError that lists the plugins without it, and the errors of plugins that do not load.
    """
    sought: list[str] = []
    for names in [[plugin]] if plugin else _places():
        try:
            registry = load(names)
        except PluginError as error:
            sought.append(error.message)
            continue
        if name in registry.by_hook("quire_architectures"):
            record: Architecture = registry.by_hook("quire_architectures")[name]
            return record, registry
        sought.append(", ".join(info.name for info in registry.plugins))
    raise AssertionError(f"No installed plugin has the architecture {name!r}. Searched: {'; '.join(sought)}.")


def _places() -> Iterator[list[str] | None]:
    """Plugins to load together: other plugins one by one, since two of them may conflict, then the bundled ones."""
    yield from ([p.name] for p in installed() if p.distribution != DISTRIBUTION)
    yield None


def _load(record: Architecture, registry: Registry, folder: Path, device: str) -> LoadedModel:
    hook, ops = "quire_architectures", registry.by_hook("quire_ops")
    origin = {("quire_ops", name): registry.plugin_of("quire_ops", name) for name in ops}
    alone = Registry(
        records={hook: {record.name: record}, "quire_ops": ops},
        origin={**origin, (hook, record.name): registry.origin.get((hook, record.name), "the checked one")},
        plugins=registry.plugins,
    )
    is_unbounded = checkpoint.max_length(checkpoint.read_config(folder)) is None
    length = SIZES["max_position_embeddings"] if is_unbounded else None
    config = ModelConfig(model=str(folder), dtype="float32", device=device, max_model_len=length)
    return load_model(config, alone)


def _seqs(vocab: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in LENGTHS]


def _run(
    loaded: LoadedModel, seqs: Sequence[Sequence[int]], steps: Sequence[Sequence[ChunkSpec]] | None = None
) -> list[Tensor]:
    with torch.inference_mode():
        module: Any = loaded.module
        return [logits.cpu() for logits in run_tokens(module, loaded.decoder, seqs, steps)]


def _expected(model: Callable[[Tensor], Tensor], tokens: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).float()


def _chunkings(seqs: Sequence[Sequence[int]]) -> dict[str, list[list[ChunkSpec]]]:
    """Steps for all sequences: one after the other, token by token, and mixed (decode beside prefill)."""
    lengths = [len(tokens) for tokens in seqs]
    one_by_one = [[ChunkSpec(i, n)] for i, n in enumerate(lengths)]
    decode = [[ChunkSpec(i, 1) for i, n in enumerate(lengths) if at < n] for at in range(max(lengths))]
    first = [[ChunkSpec(0, 10), ChunkSpec(3, 5)], [ChunkSpec(1, 7), ChunkSpec(0, 3)]]
    mixed = [[ChunkSpec(3, 1), ChunkSpec(0, 4)]] * 5
    return {"one after the other": one_by_one, "token by token": decode, "in mixed chunks": first + mixed}


def _equal(found: Sequence[Tensor], whole: Sequence[Tensor], what: str, tolerance: float = 2e-5) -> None:
    """Equal except for rounding: a matrix product of another size may sum in another order."""
    for a, b in zip(found, whole, strict=True):
        scale = b.abs().max().clamp(min=1.0)
        worst = ((a - b).abs().max() / scale).item()
        require(worst <= tolerance, f"The {what}: by up to {worst:.2g} of the largest.")
