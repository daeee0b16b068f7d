"""The deltas of an adapter of any kind that the package peft can merge (LoHa, LoKr, …), module by module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, ConfigError
from quire_adapter_tools.extraction import Difference
from quire_models.loading import checkpoint


def deltas(base: Path, adapter: Path) -> Iterator[Difference]:
    """What the adapter adds to each matrix, computed in float32. The model is loaded with transformers.

    Raises ConfigError without the package peft, CheckpointError if it cannot load or merge the adapter.
    """
    try:
        from peft import PeftModel
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError as error:
        raise ConfigError("Adapters of this kind need the package peft: pip install 'quire-serve[peft]'.") from error
    try:
        wrapped = PeftModel.from_pretrained(_reference(base), str(adapter))
    except Exception as error:  # of peft, for files that it cannot use
        raise CheckpointError(f"peft cannot load {adapter}: {type(error).__name__}: {error}") from error
    for path, layer in wrapped.get_base_model().named_modules():
        if isinstance(layer, BaseTunerLayer):
            yield _delta(path, layer)


def _reference(folder: Path) -> Any:
    import torch
    import transformers

    (name, *_) = checkpoint.raw_config(folder).get("architectures") or [""]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise ConfigError(f"transformers has no class {name!r}, which peft needs to compute the deltas.")
    return cls.from_pretrained(folder, dtype=torch.float32)


def _delta(path: str, layer: Any) -> Difference:
    from torch import nn

    inner = layer.get_base_layer()
    before = inner.weight.detach().clone()
    try:
        layer.merge()
    except Exception as error:  # of peft, for kinds that cannot be merged
        raise CheckpointError(f"peft cannot merge {path!r}: {type(error).__name__}: {error}") from error
    d = inner.weight.detach() - before
    is_table = isinstance(inner, nn.Embedding)
    is_transposed = not is_table and type(inner).__name__ == "Conv1D"
    return Difference(path, d.T if is_table or is_transposed else d, is_table, is_transposed)
