"""What an adapter is, and whether it runs on a model, by its configuration and the shapes of its tensors alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest, QuireError
from quire.isolation.plugin_calls import SubprocessCalls
from quire.records import Registry
from quire_adapter_tools.base_model import PLACEHOLDER, BaseModel
from quire_adapter_tools.vectors import target_of
from quire_adapters.peft import headers
from quire_adapters.peft.config import PeftConfig
from quire_adapters.peft.loader import weights_of
from quire_adapters.peft.lora_pairs import LoraPairs
from quire_adapters.peft.tensor_files import SIZES
from quire_adapters.peft.virtual_tokens import KINDS as VIRTUAL_TOKENS, PREFIX_TUNING, check_config, check_tensors
from quire_adapters.prompt_tuning_runtime import takes_of
from quire_adapters.target_modules import TargetModules

LORA, IA3 = "LORA", "IA3"
VARIANTS = (("use_dora", "DoRA"), ("use_rslora", "rsLoRA"), ("lora_bias", "biases of the low rank"))

TensorShape = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""


@dataclass(frozen=True)
class AdapterFile:
    """An adapter as its folder describes it. config: adapter_config.json. num_bytes: of the file of tensors."""

    folder: Path
    config: Mapping[str, Any]
    file: str
    num_bytes: int
    tensors: tuple[TensorShape, ...]

    @property
    def kind(self) -> str:
        """PEFT's name of the kind, such as LORA."""
        return str(self.config.get("peft_type", "unknown"))[:40]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for _, _, shape in self.tensors)

    def placeholders(self) -> dict[str, Tensor]:
        """Tensors of these shapes that take no memory; all numbers are the same."""
        return {name: torch.tensor(PLACEHOLDER).expand(shape) for name, _, shape in self.tensors}


@dataclass(frozen=True)
class LowRankShapes:
    """The configuration of a LoRA adapter, checked, and the rank and alpha of each target."""

    config: PeftConfig
    ranks: Mapping[str, Mapping[str, tuple[int, float]]]


def read_adapter(folder: Path, in_subprocess: SubprocessCalls) -> AdapterFile:
    """Read the configuration and the shapes. Raises BadRequest if the folder has no adapter, or a malformed one."""
    found = in_subprocess(headers.read, str(folder))
    tensors = tuple((name, dtype, tuple(shape)) for name, dtype, shape in found["tensors"])
    return AdapterFile(folder, found["config"], found["file"], found["bytes"], tensors)


def read_low_rank(adapter: AdapterFile, in_subprocess: SubprocessCalls) -> LowRankShapes:
    """Check a LoRA adapter's configuration. Raises BadRequest if it is malformed or of a variant that does not run."""
    found = in_subprocess(headers.read_lora, str(adapter.folder), [name for name, _, _ in adapter.tensors])
    return LowRankShapes(PeftConfig(**found["config"]), found["ranks"])


def facts(adapter: AdapterFile) -> dict[str, Any]:
    """What the adapter is, by the words of a report."""
    config = adapter.config
    parts = [text for name, text in VARIANTS if config.get(name) is True]
    ranks = [config.get("r"), *_values(config.get("rank_pattern"))]
    found = {
        "folder": str(adapter.folder),
        "kind": ", ".join([adapter.kind, *parts]),
        "base model": config.get("base_model_name_or_path"),
        "task": config.get("task_type"),
        "virtual tokens": config.get("num_virtual_tokens"),
        "rank": _range([rank for rank in ranks if isinstance(rank, int)]),
        "alpha": _range([a for a in (config.get("lora_alpha"), *_values(config.get("alpha_pattern"))) if _number(a)]),
        "target modules": _names(config.get("target_modules")),
        "target parameters": _names(config.get("target_parameters")),
        "modules saved whole": _names(config.get("modules_to_save")),
        "trained biases": config.get("bias") if config.get("bias") != "none" else None,
        "tensors": f"{len(adapter.tensors)} ({', '.join(sorted(Counter(dtype for _, dtype, _ in adapter.tensors)))})",
        "parameters": adapter.num_parameters,
        "file": adapter.file,
        "bytes": adapter.num_bytes,
    }
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def problem_on(
    adapter: AdapterFile, base: BaseModel | None, registry: Registry, max_rank: int, in_subprocess: SubprocessCalls
) -> str | None:
    """Why the adapter does not run, on a model or, if there is none, on any; None if it does.

    The numbers of the tensors are not looked at: loading still refuses those that are not finite.
    """
    runtimes = {kind: record.name for record in registry.all("quire_adapter_runtimes") for kind in record.peft_types}
    if adapter.kind not in runtimes:
        return f"no loaded plugin runs adapters of the kind {adapter.kind} (those that run: {', '.join(runtimes)})."
    try:
        if adapter.kind == LORA:
            shapes = read_low_rank(adapter, in_subprocess)
            if base is not None:
                _check_low_rank(adapter, shapes, base, max_rank)
        elif adapter.kind == IA3 and base is not None:
            _check_ia3(adapter, base)
        elif adapter.kind in VIRTUAL_TOKENS and base is not None:
            _check_virtual_tokens(adapter, base)
    except QuireError as error:
        return error.message
    return None


def _check_low_rank(adapter: AdapterFile, shapes: LowRankShapes, base: BaseModel, max_rank: int) -> None:
    """Raise BadRequest unless the shapes fit the model, as loading does."""
    targets = TargetModules(base.module, base.names)
    _check_size(adapter, targets, max_rank)
    pairs = LoraPairs(shapes.config, shapes.ranks, max_rank)
    weights_of(adapter.placeholders(), shapes.config, pairs, targets, torch.float32)


def _check_size(adapter: AdapterFile, targets: TargetModules, max_rank: int) -> None:
    """Raise BadRequest for more bytes or tensors than an adapter of the model can have, as loading does."""
    num_bytes = max(adapter.num_bytes, adapter.num_parameters * min(SIZES.values()))
    limits = ((num_bytes, "bytes", targets.max_bytes(max_rank)), (len(adapter.tensors), "tensors", targets.max_tensors))
    for count, what, most in limits:
        if count > most:
            raise BadRequest(f"The adapter has {count} {what}; one of this model has at most {most}.")


def _check_ia3(adapter: AdapterFile, base: BaseModel) -> None:
    targets = TargetModules(base.module, base.names)
    for name, _, shape in adapter.tensors:
        target_of(name, shape, targets)


def _check_virtual_tokens(adapter: AdapterFile, base: BaseModel) -> None:
    takes = takes_of(base.module)
    count = check_config(adapter.config, takes)
    shapes = [(name, shape) for name, _, shape in adapter.tensors]
    check_tensors(shapes, count, takes, adapter.kind == PREFIX_TUNING)


def _values(table: Any) -> list[Any]:
    return list(table.values()) if isinstance(table, dict) else []


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _range(numbers: list[Any]) -> str | None:
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _names(value: Any) -> str | None:
    """Names, or a pattern, as one text."""
    return ", ".join(sorted(map(str, value))) if isinstance(value, list) else value if isinstance(value, str) else None
