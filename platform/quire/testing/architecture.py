"""Conformance of architectures: a tiny random checkpoint is loaded as any model is, and compared with transformers.

It knows no architecture; the one to check is a record, or the name of one that an installed plugin brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor

from quire.config import ModelConfig
from quire.discovery import DISTRIBUTION, installed
from quire.engine.load import Loaded, load_model
from quire.errors import PluginError
from quire.records import Architecture, Registry
from quire.registry import load
from quire.testing.demand import demand
from quire.testing.tiny import SIZES, byte_tokenizer, reference_model, save
from quire_models import checkpoint
from quire_models.testing import Piece, run_tokens

LENGTHS = (41, 7, 1, 23)
"""Of the seqs tried: one longer than several pages, one of a single token."""


Reference: TypeAlias = Callable[[Path], Callable[[Tensor], Tensor]]
"""Writes a tiny model into a folder, as `check_architecture` describes, and gives what computes it."""


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

    architecture: a record, or its name: then `plugin` (or, without it, any installed plugin) must bring it. All else
    that the plugin brings is loaded too, its operations above all; for a record, name its `plugin` if it needs them.
    reference: for models that transformers does not have: a function that writes config.json and the weights of a tiny
    model into the folder it is given, and gives a function from token ids [1, n] to logits [n, vocab]. Without it the
    class of that name in transformers is the reference, with `attention` as its attn_implementation ("sdpa" where
    "eager" computes something else). overrides: settings of its config, so that what is special about the architecture
    shows at a small size (a short window, a wide head). Checked on the way: config.json becomes a decoder, and the
    table of names accounts for every tensor of the checkpoint.
    """
    record, registry = _found(architecture, plugin)
    demand(not (reference and overrides), "Settings are the reference's affair where one is given.")
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
        demand(worst <= tolerance, f"Logits of {len(tokens)} tokens differ from {source} by up to {worst:.2g}.")
    for name, steps in _chunkings(seqs).items():
        _equal(_run(loaded, seqs, steps), whole, f"logits change when the seqs are computed {name}")
    alone = [_run(loaded, [tokens])[0] for tokens in seqs]
    _equal(alone, whole, "logits depend on the other seqs of the batch")


def _of_transformers(model: Any, folder: Path) -> Callable[[Tensor], Tensor]:
    """Write a model of transformers, and give what computes its logits [n, vocab]."""
    save(model, folder)
    return lambda ids: model(ids, use_cache=False).logits[0]


def _found(architecture: str | Architecture, plugin: str | None) -> tuple[Architecture, Registry]:
    """The record, and what its plugin brings."""
    if isinstance(architecture, str):
        return find(architecture, plugin)
    return architecture, load([plugin]) if plugin else Registry()


def find(name: str, plugin: str | None = None) -> tuple[Architecture, Registry]:
    """The record of that name, from one plugin or from whichever installed plugin brings it, and what was loaded.

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
            return record, registry
        sought.append(", ".join(info.name for info in registry.plugins))
    raise AssertionError(f"No installed plugin brings the architecture {name!r}. Sought in: {'; '.join(sought)}.")


def _places() -> Iterator[list[str] | None]:
    """What to load to find a record: the others one by one, as two of them may clash, then the bundled ones."""
    yield from ([p.name] for p in installed() if p.distribution != DISTRIBUTION)
    yield None


def _load(record: Architecture, registry: Registry, folder: Path, device: str) -> Loaded:
    hook, ops = "quire_architectures", registry.of("quire_ops")
    origin = {("quire_ops", name): registry.plugin_of("quire_ops", name) for name in ops}
    alone = Registry(
        records={hook: {record.name: record}, "quire_ops": ops},
        origin={**origin, (hook, record.name): registry.origin.get((hook, record.name), "the one being checked")},
        plugins=registry.plugins,
    )
    endless = checkpoint.max_length(checkpoint.read_config(folder)) is None
    length = SIZES["max_position_embeddings"] if endless else None
    config = ModelConfig(model=str(folder), dtype="float32", device=device, max_model_len=length)
    return load_model(config, alone)


def _seqs(vocab: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in LENGTHS]


def _run(loaded: Loaded, seqs: Sequence[Sequence[int]], steps: Sequence[Sequence[Piece]] | None = None) -> list[Tensor]:
    with torch.inference_mode():
        module: Any = loaded.module
        return [logits.cpu() for logits in run_tokens(module, loaded.decoder, seqs, steps)]


def _expected(model: Callable[[Tensor], Tensor], tokens: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).float()


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
