"""Conformance of architectures: a tiny random checkpoint is loaded as any model is, and compared with transformers.

It knows no architecture; the one to check is a record, or the name of one that an installed plugin brings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from quire.config import ModelConfig
from quire.discovery import DISTRIBUTION, installed
from quire.engine.load import Loaded, load_model
from quire.errors import PluginError
from quire.records import Architecture, Registry
from quire.registry import load
from quire.testing.demand import demand
from quire.testing.tiny import byte_tokenizer, reference_model, save
from quire_models.testing import Piece, run_tokens

LENGTHS = (41, 7, 1, 23)
"""Of the seqs tried: one longer than several pages, one of a single token."""


def check_architecture(
    architecture: str | Architecture,
    *,
    plugin: str | None = None,
    tolerance: float = 1e-4,
    seed: int = 0,
    device: str = "cpu",
    **overrides: Any,
) -> None:
    """Float32 logits of a tiny random model equal transformers' at every position, and depend on nothing else.

    architecture: a record, or its name: then `plugin` (or, without it, any installed plugin) must bring
    it. overrides: settings of the config, so that what is special about the architecture shows at a small
    size (a short window, a wide head). Checked on the way: config.json becomes a decoder, and the table of
    names accounts for every tensor of the checkpoint.
    """
    record = find(architecture, plugin) if isinstance(architecture, str) else architecture
    expected_of = reference_model(record.name, seed, **overrides)
    with TemporaryDirectory() as folder:
        save(expected_of, folder)
        byte_tokenizer(folder)
        loaded = _load(record, Path(folder), device)
    seqs = _seqs(loaded.decoder.vocab, seed)
    whole = _run(loaded, seqs)
    for tokens, logits in zip(seqs, whole, strict=True):
        expected = _expected(expected_of, tokens)
        worst = (logits - expected).abs().max().item()
        demand(worst <= tolerance, f"Logits of {len(tokens)} tokens differ from transformers' by up to {worst:.2g}.")
    for name, steps in _chunkings(seqs).items():
        _equal(_run(loaded, seqs, steps), whole, f"logits change when the seqs are computed {name}")
    alone = [_run(loaded, [tokens])[0] for tokens in seqs]
    _equal(alone, whole, "logits depend on the other seqs of the batch")


def find(name: str, plugin: str | None = None) -> Architecture:
    """The record of that name, from one plugin or from whichever installed plugin brings it.

    Raises AssertionError listing where it was sought, with the errors of plugins that do not load.
    """
    sought: list[str] = []
    for names in [[plugin]] if plugin else _places():
        try:
            registry = load(names)
        except PluginError as error:
            sought.append(error.message)
            continue
        if name in registry.of("quire_architectures"):
            record: Architecture = registry.of("quire_architectures")[name]
            return record
        sought.append(", ".join(info.name for info in registry.plugins))
    raise AssertionError(f"No installed plugin brings the architecture {name!r}. Sought in: {'; '.join(sought)}.")


def _places() -> Iterator[list[str] | None]:
    """What to load to find a record: the others one by one, as two of them may clash, then the bundled ones."""
    yield from ([p.name] for p in installed() if p.distribution != DISTRIBUTION)
    yield None


def _load(record: Architecture, folder: Path, device: str) -> Loaded:
    registry = Registry(
        records={"quire_architectures": {record.name: record}},
        origin={("quire_architectures", record.name): "the one being checked"},
    )
    return load_model(ModelConfig(model=str(folder), dtype="float32", device=device), registry)


def _seqs(vocab: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in LENGTHS]


def _run(loaded: Loaded, seqs: Sequence[Sequence[int]], steps: Sequence[Sequence[Piece]] | None = None) -> list[Tensor]:
    with torch.inference_mode():
        module: Any = loaded.module
        return [logits.cpu() for logits in run_tokens(module, loaded.decoder, seqs, steps)]


def _expected(model: Any, tokens: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    return logits


def _chunkings(seqs: Sequence[Sequence[int]]) -> dict[str, list[list[Piece]]]:
    """Steps for all seqs: one after the other, token by token, and mixed (one decodes while one is prefilled)."""
    lengths = [len(tokens) for tokens in seqs]
    one_by_one = [[Piece(i, n)] for i, n in enumerate(lengths)]
    decode = [[Piece(i, 1) for i, n in enumerate(lengths) if at < n] for at in range(max(lengths))]
    first = [[Piece(0, 10), Piece(3, 5)], [Piece(1, 7), Piece(0, 3)]]
    mixed = [[Piece(3, 1), Piece(0, 4)]] * 5
    return {"one after the other": one_by_one, "token by token": decode, "in mixed chunks": first + mixed}


def _equal(found: Sequence[Tensor], whole: Sequence[Tensor], what: str, tolerance: float = 2e-5) -> None:
    """The same numbers, but for the order in which a matrix product of another size sums."""
    for a, b in zip(found, whole, strict=True):
        scale = b.abs().max().clamp(min=1.0)
        worst = ((a - b).abs().max() / scale).item()
        demand(worst <= tolerance, f"The {what}: by up to {worst:.2g} of the largest.")
