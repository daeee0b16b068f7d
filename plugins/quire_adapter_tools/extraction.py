"""Writes a LoRA adapter of differences of weights: those of two checkpoints, or deltas that are computed elsewhere."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from quire.errors import BadRequest, CheckpointError
from quire_adapter_tools.low_rank import TruncatedMatrix, truncated
from quire_adapter_tools.stored_weights import StoredWeights
from quire_adapters.peft.modules import PREFIX
from quire_adapters.target_modules import EmbeddingTarget, TargetModules
from quire_models.loading.checkpoint_writer import new_folder
from quire_models.loading.weight_names import RowOrder, transpose

WEIGHT = ".weight"


@dataclass(frozen=True, eq=False)
class Difference:
    """The change of one matrix. module: its path in the checkpoint. d: float32 [outputs, inputs].

    is_table: an embedding table; d is then [width, rows]. is_transposed: the checkpoint stores [inputs, outputs].
    """

    module: str
    d: Tensor
    is_table: bool = False
    is_transposed: bool = False


@dataclass(frozen=True)
class Truncation:
    """How much of each matrix is kept, as `low_rank.truncated` has it, and the data type of the adapter."""

    max_rank: int
    energy: float = 1.0
    dtype: torch.dtype = torch.float32


@dataclass(eq=False)
class Extraction:
    """What was extracted: for each module its rank, ‖d‖² and residual²; and tensors that differ but were left out."""

    ranks: dict[str, int] = field(default_factory=dict)
    squares: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    num_bytes: int = 0

    @property
    def error(self) -> float:
        """√(Σ residual² / Σ ‖d‖²) over all matrices."""
        norms, residuals = (math.fsum(column) for column in zip(*self.squares.values(), strict=True))
        return math.sqrt(residuals / norms) if norms else 0.0

    @property
    def worst(self) -> tuple[str, float]:
        """The module with the largest residual as a share of its norm, and this share."""
        shares = {module: math.sqrt(r / n) if n else 0.0 for module, (n, r) in self.squares.items()}
        module = max(shares, key=shares.__getitem__)
        return module, shares[module]

    def add(self, module: str, found: TruncatedMatrix) -> None:
        """Count one module with what was found for it."""
        self.ranks[module] = found.rank
        self.squares[module] = found.norm**2, found.residual**2


def differences(base: StoredWeights, tuned: StoredWeights, left_out: list[str]) -> Iterator[Difference]:
    """The matrices that differ; names of other tensors that differ are added to `left_out`.

    Raises CheckpointError if the checkpoints do not have the same tensors in the same shapes.
    """
    missing = sorted({*base.files} ^ {*tuned.files})
    tied = base.base.decoder.tied and tuned.base.decoder.tied
    for name in missing:
        if not (tied and base.base.names.rename(name) == "head.weight") and base.slice_of(name) is not None:
            where = base.base.folder if name in base.files else tuned.base.folder
            raise CheckpointError(f"Only {where} has the tensor {name!r}; both must be of the same architecture.")
    targets = TargetModules(base.base.module, base.base.names)
    for name in tqdm(base.files, desc="comparing", unit="tensor", file=sys.stderr, disable=None):
        if name not in tuned.files or base.slice_of(name) is None:
            continue
        if base.files[name] != tuned.files[name]:
            shapes = f"{list(base.files[name])} and {list(tuned.files[name])}"
            raise CheckpointError(f"Tensor {name!r} has the shapes {shapes}; an adapter cannot change shapes.")
        before, after = base.files.read(name), tuned.files.read(name)
        if torch.equal(before, after):
            continue
        found = _difference(name, before, after, base, targets)
        if found is None:
            left_out.append(name)
            continue
        yield found
        if found.is_table and tied and base.base.names.rename(name) == "embed.weight":
            yield Difference(_head_module(base), found.d.T)


def _difference(
    name: str, before: Tensor, after: Tensor, base: StoredWeights, targets: TargetModules
) -> Difference | None:
    """The difference of a tensor; None if it is no matrix of a target."""
    transform = base.base.names.transform(base.base.names.rename(name))
    plain = transform in (None, transpose) or isinstance(transform, RowOrder)
    if before.dim() != 2 or not name.endswith(WEIGHT) or not plain:
        return None
    module = name.removesuffix(WEIGHT)
    try:
        target = targets.find(module)
    except BadRequest:  # no target of that name
        return None
    d = after.float() - before.float()
    is_table, is_transposed = isinstance(target, EmbeddingTarget), transform is transpose
    return Difference(module, d.T if is_table or is_transposed else d, is_table, is_transposed)


def _head_module(base: StoredWeights) -> str:
    for module in ("lm_head", "language_model.lm_head"):
        if base.base.names.rename(module) == "head":
            return module
    raise CheckpointError("The head is tied to the embeddings, which differ, and adapters cannot name the head here.")


def extract(
    found: Iterable[Difference], truncation: Truncation, base_name: str, out: Path, result: Extraction
) -> Extraction:
    """Write the adapter of these differences into the folder `out`, and count them in `result`.

    Raises CheckpointError if nothing differs, ConfigError if the folder exists.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    transposed = False
    for each in found:
        low_rank = truncated(each.d, truncation.max_rank, truncation.energy, truncation.dtype)
        a, b = ("lora_embedding_A", "lora_embedding_B") if each.is_table else ("lora_A.weight", "lora_B.weight")
        tensors[f"{PREFIX}{each.module}.{a}"] = low_rank.a
        tensors[f"{PREFIX}{each.module}.{b}"] = low_rank.b
        transposed |= each.is_transposed
        result.add(each.module, low_rank)
    if not tensors:
        raise CheckpointError("No matrix differs that an adapter could change.")
    result.num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    with new_folder(out) as target:
        save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
        config = adapter_config(result.ranks, base_name, transposed)
        (target / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return result


def adapter_config(ranks: dict[str, int], base_name: str, transposed: bool) -> dict[str, Any]:
    """adapter_config.json of an adapter with these ranks, by module; alpha equals the rank, so the factor is 1."""
    usual = max(set(ranks.values()), key=list(ranks.values()).count)
    others = {module: rank for module, rank in ranks.items() if rank != usual}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted(ranks),
        "fan_in_fan_out": transposed,
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
