"""Reads an adapter in PEFT's format into `AdapterWeights`, and rejects every tensor that does not fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.isolation.plugin_calls import SubprocessCalls
from quire_adapters import dora
from quire_adapters.base_values import BaseValues
from quire_adapters.peft import targets, tensor_files as files
from quire_adapters.peft.config import PeftConfig
from quire_adapters.peft.lora_pairs import MAX_CHANGE, LoraPair, LoraPairs
from quire_adapters.peft.modules import AdapterModule, group_by_module, listed, unwrap_path
from quire_adapters.target_modules import EmbeddingTarget, ExpertsTarget, LinearTarget, TargetModules
from quire_adapters.weights import AdapterWeights, EmbeddingUpdate, ExpertsUpdate, ExpertUpdate, can_be_replaced
from quire_kernels.low_rank import LowRankUpdate


def read(
    folder: Path,
    target_modules: TargetModules,
    max_rank: int,
    dtype: torch.dtype,
    in_subprocess: SubprocessCalls,
    base: BaseValues | None = None,
) -> AdapterWeights:
    """The weights of the adapter in a folder, for a model that computes in `dtype`.

    in_subprocess: calls the function that reads the files. base: None = those of `target_modules`. Raises BadRequest if
    the adapter is malformed, does not fit the model, or is of an unsupported kind.
    """
    max_bytes = target_modules.max_bytes(max_rank)
    max_tensors = target_modules.max_tensors
    found = in_subprocess(targets.read, str(folder), max_bytes, max_tensors, memory_bytes=3 * max_bytes)
    config, ranks = PeftConfig(**found.value["config"]), found.value["ranks"]
    tensors = files.tensors_of(found.value["tensors"], found.memory)
    return weights_of(tensors, config, LoraPairs(config, ranks, max_rank), target_modules, dtype, base)


def weights_of(
    tensors: Mapping[str, Tensor],
    config: PeftConfig,
    pairs: LoraPairs,
    target_modules: TargetModules,
    dtype: torch.dtype,
    base: BaseValues | None = None,
) -> AdapterWeights:
    """The weights of an adapter with these tensors, for a model that computes in `dtype`. Raises BadRequest."""
    loader = _PeftLoader(config, target_modules, pairs, dtype, base or BaseValues())
    largest = min(torch.finfo(dtype).max, MAX_CHANGE)
    for module in group_by_module(tensors, largest):
        loader.load(module)
    if not loader.weights.targets:
        raise BadRequest("The adapter changes nothing: it has no tensors.", "lora_path")
    return loader.weights


@dataclass(frozen=True, eq=False)
class _FullWeight:
    """A weight that replaces the model's."""

    weight: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, float32, on the device of the ids."""
        return self.weight[ids.cpu()].to(ids.device)


class _PeftLoader:
    """Loads one adapter, module by module, into `weights`."""

    def __init__(
        self, config: PeftConfig, target_modules: TargetModules, pairs: LoraPairs, dtype: torch.dtype, base: BaseValues
    ) -> None:
        self._config, self._targets, self._pairs, self._dtype = config, target_modules, pairs, dtype
        self._base = base
        self._experts_seen: set[tuple[str, str, int]] = set()
        self.weights = AdapterWeights()

    def load(self, module: AdapterModule) -> None:
        """Load all tensors of one module. Raises BadRequest."""
        path = unwrap_path(module.path)
        order = self._targets.row_order(path)
        if order is not None:
            module.reorder(order)
        self._drop_copies(module, path)
        if not module.tensors:
            return
        target = self._targets.find(path)
        if isinstance(target, LinearTarget):
            self._load_linear(module, target)
        elif isinstance(target, EmbeddingTarget):
            self._load_embedding(module, target)
        else:
            self._load_experts(module, path, target)
        module.check_consumed()
        self.weights.targets[path.rpartition(".")[2]] = None

    def _drop_copies(self, module: AdapterModule, path: str) -> None:
        """Drop tensors that equal the base: PEFT saves embeddings that it changes, and all biases if any is changed."""
        for kind in ("weight", "bias"):
            base = self._targets.base(path, kind) if module.has(kind) else None
            if base is None:
                continue
            name, tensor = module.tensors[kind]
            if tuple(tensor.shape) != base.shape:
                if base.is_vocabulary and len(tensor.shape) == 2 and tensor.shape[1] == base.shape[1]:
                    raise BadRequest(
                        f"{name!r} has rows for {len(tensor)} tokens, and this model has {base.shape[0]}: adapters "
                        "with another vocabulary (added tokens) cannot be used.",
                        "lora_path",
                    )
                continue  # loading the module will report the expected shape
            if self._base.equals(base, tensor, self._dtype):
                del module.tensors[kind]
            elif not base.is_replaceable:
                raise BadRequest(
                    f"The adapter has {name!r} trained whole; only heads, embeddings, modules of a tower outside "
                    "of its blocks, and biases of matrices can be (modules_to_save, bias).",
                    "lora_path",
                )

    # --- kinds of module -----------------------------------------------------------------------------

    def _load_linear(self, module: AdapterModule, target: LinearTarget) -> None:
        outputs = target.shape[0]
        own_bias = self._base.bias(target)
        if can_be_replaced(target.path) and module.has("weight"):
            self.weights.replaced[target.path] = module.take("weight", target.shape)
        pair = self._pair(module, target.shape)
        scale = self._dora_scale(module, target, pair)
        if module.has("bias") and target.bias is None:
            raise BadRequest(f"The adapter has a bias for {module.path!r}, which has none in this model.", "lora_path")
        if module.has("bias") and self._config.bias == "none" and not can_be_replaced(target.path):
            raise BadRequest(
                f"The adapter has a trained bias for {module.path!r}, and adapter_config.json says `bias` none.",
                "lora_path",
            )
        bias = module.take("bias", (outputs,)) if module.has("bias") else own_bias
        shift = None if bias is None or own_bias is None else bias - own_bias * (1 if scale is None else scale)
        if pair is not None and self._config.lora_bias:
            added = module.take("b_bias", (outputs,)) * pair.factor
            shift = added if shift is None else shift + added
        if shift is not None and not shift.any():
            shift = None
        if pair is None:
            update = LowRankUpdate(shift=shift)
        else:
            update = LowRankUpdate(pair.a, pair.b if scale is None else pair.b * scale[:, None], scale, shift)
        if any(part is not None for part in update):
            self._add(module.path, target, update)

    def _pair(self, module: AdapterModule, shape: tuple[int, int], a: str = "a", b: str = "b") -> LoraPair | None:
        pair = self._pairs.take(module, shape, (a, b))
        self._note_rank(0 if pair is None else pair.rank)
        return pair

    def _note_rank(self, rank: int) -> None:
        self.weights.rank = max(self.weights.rank, rank)

    def _dora_scale(self, module: AdapterModule, target: LinearTarget, pair: LoraPair | None) -> Tensor | None:
        """DoRA's factors of the outputs, float32 [outputs]; None without DoRA."""
        if pair is None or not self._config.use_dora:
            return None
        magnitude = module.take("magnitude", target.shape[:1])
        replaced = self.weights.replaced.get(target.path)
        if replaced is None:
            norms = self._base.row_norms(target, pair.a, pair.b)
        else:
            norms = dora.row_norms(_FullWeight(replaced).rows, pair.a, pair.b, target.device)
        return module.check_finite(f"{module.path} · magnitude", magnitude / norms)

    def _add(self, path: str, target: LinearTarget, update: LowRankUpdate) -> None:
        """Split the update of a matrix into its slices of the projection."""
        slices = self._targets.slices(target.path)
        updates = self.weights.linear.setdefault(target.path, [None] * len(slices))
        for i in target.slices:
            if updates[i] is not None:
                raise BadRequest(f"The adapter changes {path!r} twice: as a whole, and in parts.", "lora_path")
            start, stop = (at - target.start for at in slices[i])
            b, scale, shift = (None if part is None else part[start:stop] for part in update[1:])
            updates[i] = LowRankUpdate(update.a, b, scale, shift)

    def _load_embedding(self, module: AdapterModule, target: EmbeddingTarget) -> None:
        rows, width = target.shape
        replaced = module.take("weight", target.shape) if module.has("weight") else None
        pair = self._pair(module, (width, rows), "table_a", "table_b")
        a = b = scale = None
        if pair is not None:
            a, b = pair.a.T, pair.b.T
            if self._config.use_dora:
                if replaced is None:
                    norms = self._base.column_norms(target, a, b)
                else:
                    norms = dora.column_norms(_FullWeight(replaced).rows, a, b, target.device)
                scale = module.check_finite(f"{module.path} · magnitude", module.take("magnitude", (width,)) / norms)
                b = b * scale
            a, b = _contiguous_copy(a, self._dtype), b * target.scale
        if replaced is not None:
            replaced = (replaced * target.scale).to(self._dtype)
        self.weights.tables[target.path] = EmbeddingUpdate(replaced, a, b, scale)

    def _load_experts(self, module: AdapterModule, path: str, target: ExpertsTarget) -> None:
        if self._config.use_dora:
            raise BadRequest(f"The adapter uses DoRA on experts ({path!r}), which is not supported.", "lora_path")
        updates = self.weights.experts.setdefault(target.path, ExpertsUpdate())
        if target.expert is not None:
            matrix, start = target.matrix, target.up_start if target.matrix == "up" else 0
            pair = self._pair(module, target.shape(matrix))
            found = {} if pair is None else {target.expert: pair}
        else:
            matrix, start = self._stacked_matrix(module, target), 0
            stacked = target.stacked_name(matrix)
            pairs = self._pairs.take_stacked(module, path, stacked, target.shape(matrix), target.count)
            self._note_rank(-(-pairs[0].rank // LoraPairs.parts(stacked)))
            found = dict(enumerate(pairs))
        for one in ("gate", "up") if matrix == "gate_up" else (matrix,):
            if self._experts_seen & {(target.path, one, expert) for expert in found}:
                raise BadRequest(f"The adapter changes {path!r} twice: as a whole, and in parts.", "lora_path")
            self._experts_seen |= {(target.path, one, expert) for expert in found}
        by_expert = updates.down if matrix == "down" else updates.gate_up
        for expert, pair in found.items():
            update = ExpertUpdate(_contiguous_copy(pair.a, self._dtype), _contiguous_copy(pair.b, self._dtype), start)
            by_expert.setdefault(expert, []).append(update)

    def _stacked_matrix(self, module: AdapterModule, target: ExpertsTarget) -> str:
        """The stacked matrix that the tensors are for. It follows from their shapes; their names do not tell."""
        found = module.shape("b")[0], module.shape("a")[1:]
        for matrix in ("gate_up", "down"):
            outputs, inputs = target.shape(matrix)
            if found == (outputs, (inputs,)):
                return matrix
        expected = " or ".join(
            f"{target.shape(m)[0]} outputs and {target.shape(m)[1]} inputs" for m in ("gate_up", "down")
        )
        raise BadRequest(
            f"{listed([name for name, _ in module.tensors.values()])} fit no matrix of these experts: {expected}.",
            "lora_path",
        )


def _contiguous_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy, so that the memory with the file's content can be freed."""
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
