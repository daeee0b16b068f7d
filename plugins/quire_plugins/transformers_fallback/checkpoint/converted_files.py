"""A checkpoint through transformers' own conversions: other names, and fused or split tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch

from quire.errors import CheckpointError
from quire_models.loading.quantized_files import WeightFiles
from quire_models.loading.tensor_files import Shape


@dataclass
class _Group:
    """Tensors of the checkpoint that one conversion makes tensors of. sources: (name, pattern) of each."""

    converter: Any
    target: str
    sources: list[tuple[str, str]] = field(default_factory=list)


class ConvertedFiles(Mapping[str, Shape]):
    """`WeightFiles` as transformers converts them for a model. Raises CheckpointError if a conversion fails."""

    def __init__(self, files: WeightFiles, model: Any) -> None:
        self.files = files.files
        self._files, self._model = files, model
        self._renamed: dict[str, str] = {}
        self._groups: dict[str, _Group] = {}
        self._shapes: dict[str, Shape] = {}
        self._last: tuple[_Group, dict[str, Any]] | None = None
        for group in self._grouped().values():
            for name, tensor in self._convert(group, on_meta=True).items():
                self._groups[name], self._shapes[name] = group, tuple(tensor.shape)
        for name, source in self._renamed.items():
            self._shapes.setdefault(name, files[source])

    def _grouped(self) -> dict[str, _Group]:
        """The conversions with their tensors; tensors that only get another name are entered in `_renamed`."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )

        entries = get_model_conversion_mapping(self._model)
        renamings = [entry for entry in entries if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in entries if isinstance(entry, WeightConverter)]
        by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
        known = dict(self._model.state_dict())
        prefix = self._model.base_model_prefix
        groups: dict[str, _Group] = {}
        for source in sorted(self._files, key=dot_natural_key):
            name, pattern = rename_source_key(source, renamings, converters, prefix, known)
            if name not in known and source in known:
                name, pattern = source, None
            elif name not in known:
                name, pattern = (source, None) if pattern is None else (name, pattern)
            if pattern is None:
                self._renamed[name] = source
                continue
            group = groups.setdefault(name, _Group(by_pattern[pattern], name))
            group.sources.append((source, pattern))
        return groups

    def _convert(self, group: _Group, on_meta: bool) -> dict[str, Any]:
        converter = deepcopy(group.converter)
        for source, pattern in group.sources:
            tensor = torch.empty(self._files[source], device="meta") if on_meta else self._files.read(source)
            if not isinstance(tensor, torch.Tensor):
                raise CheckpointError(
                    f"Tensor {source!r} is quantized, and transformers would convert it for this model, which works "
                    "for tensors that are not quantized only."
                )
            converter.add_tensor(group.target, source, pattern, lambda tensor=tensor: tensor)
        try:
            made = converter.convert(group.target, model=self._model, config=self._model.config)
        except Exception as error:  # of transformers
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"transformers cannot convert {group.sources[0][0]!r}: {reason}") from error
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}

    def __getitem__(self, name: str) -> Shape:
        return self._shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def read(self, name: str) -> Any:
        """A tensor on the CPU, or a quantized weight."""
        group = self._groups.get(name)
        if group is None:
            return self._files.read(self._renamed[name])
        if self._last is None or self._last[0] is not group:
            self._last = group, self._convert(group, on_meta=False)
        return self._last[1][name]

    def release(self, name: str) -> None:
        """Give memory of mapped files back to the system."""
        group = self._groups.get(name)
        if group is None:
            self._files.release(self._renamed[name])
        elif all(self._groups[other] is not group or other == name for other in self._groups):
            self._last = None
            for source, _ in group.sources:
                self._files.release(source)
