"""Replaces the modules of a model of transformers by those of Quire that compute the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from quire.errors import CheckpointError
from quire_models.loading.config_fields import act
from quire_models.modules.norms import RMSNormModule
from quire_models.parts.moe import Expert
from quire_models.parts.norms import RMSNorm
from quire_plugins.transformers_fallback.modules import (
    FusedOutput,
    FusedProjection,
    StepEmbedding,
    StepExperts,
    StepProjection,
)
from quire_plugins.transformers_fallback.same_code import same_code
from quire_plugins.transformers_fallback.step import ModelStep

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of matrices beside each other that have the same input in every family that uses these names."""

ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Names of matrices that choose experts: quantization errors there select others."""


@dataclass
class Replacement:
    """Replaces the modules of one model.

    made: the parameters so far, by the id of that on the meta device, so that tied ones stay tied. kept: those on the
    meta device, so that no other gets the id of one that is gone. spared: modules that stay as they are.
    """

    builder: ModuleBuilder
    step: ModelStep
    made: dict[int, nn.Parameter] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    spared: Collection[nn.Module] = ()

    def replace_modules(self, model: nn.Module) -> None:
        """Replace all modules that have a counterpart, in place."""
        for parent in list(model.modules()):
            for names in FUSED:
                self._fuse(parent, names)
            for name, child in list(parent.named_children()):
                made = None if child in self.spared else self._counterpart(name, child)
                if made is not None:
                    setattr(parent, name, made)

    def materialize(self, model: nn.Module) -> None:
        """Give all other parameters memory, and buffers that a checkpoint has."""
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if parameter.device.type == "meta":
                    module.register_parameter(name, self._parameter(parameter))
            for name in [n for n in module._buffers if n not in module._non_persistent_buffers_set]:
                buffer = module._buffers[name]
                if buffer is not None:
                    del module._buffers[name]
                    module.register_parameter(
                        name, nn.Parameter(torch.empty_like(buffer, device=self.builder.device), requires_grad=False)
                    )

    def head(self, table: StepEmbedding | None, linear: Any, tied: bool) -> StepProjection:
        """The language head; a tied one shares the parameter of the table."""
        if not isinstance(linear, nn.Linear):
            raise CheckpointError(f"Its language head is a {type(linear).__name__}, not a linear layer.")
        if tied and table is not None:
            head = StepProjection(table.weight, self._bias(linear), {}, self.builder, self.step)
            table.share(head)
            return head
        keeps = replace(self.builder, keep_weights=self.builder.keep_weights or tied)
        return StepProjection(self._parameter(linear.weight), self._bias(linear), {}, keeps, self.step)

    def embedding(self, table: Any) -> StepEmbedding | None:
        """The table of a plain embedding, or of one that scales its rows; None for others."""
        scale = scale_of(table)
        if scale is None:
            return None
        made = StepEmbedding(table.num_embeddings, table.embedding_dim, scale, self.builder, self.step)
        self.made[id(table.weight)] = made.weight
        self.kept.append(table.weight)
        return made

    def _counterpart(self, name: str, module: Any) -> nn.Module | None:
        if type(module) is nn.Linear:
            builder = self.builder.unquantized() if name in ROUTERS else self.builder
            return StepProjection(self._parameter(module.weight), self._bias(module), {}, builder, self.step)
        if is_transposed(module):
            inputs, outputs = module.weight.shape
            return StepProjection(
                self.builder.parameter(outputs, inputs), self._bias(module), {}, self.builder, self.step
            )
        act = act_of_experts(module)
        if act is not None:
            count, outputs, width = module.gate_up_proj.shape
            return StepExperts(width, Expert(outputs // 2, act), count, self.builder, self.step)
        norm = norm_of(module)
        if norm is not None and self._has_dtype(module.weight):
            return RMSNormModule(module.weight.shape[0], norm, self.builder)
        return None

    def _fuse(self, parent: nn.Module, names: tuple[str, ...]) -> None:
        """Replace matrices by a fused one, if they are all there and of one form."""
        found = [getattr(parent, name, None) for name in names]
        linears = [each for each in found if type(each) is nn.Linear]
        if len(linears) < len(names) or any(not self._has_dtype(each.weight) for each in linears):
            return
        if len({(each.in_features, each.bias is None) for each in linears}) != 1:
            return
        sizes = {name: each.out_features for name, each in zip(names, linears, strict=True)}
        weight = self.builder.parameter(sum(sizes.values()), linears[0].in_features)
        bias = None if linears[0].bias is None else self.builder.parameter(sum(sizes.values()))
        fused = FusedProjection(weight, bias, sizes, self.builder, self.step)
        parent.add_module(f"fused_{names[0]}", fused)
        for i, name in enumerate(names):
            setattr(parent, name, FusedOutput(fused, i))

    def _bias(self, linear: Any) -> nn.Parameter | None:
        return None if linear.bias is None else self._parameter(linear.bias)

    def _has_dtype(self, parameter: Any) -> bool:
        return bool(parameter.dtype == self.builder.dtype)

    def _parameter(self, like: Any) -> nn.Parameter:
        """A parameter with memory in the place of one on the meta device."""
        if id(like) not in self.made:
            empty = torch.empty(like.shape, dtype=like.dtype, device=self.builder.device)
            self.made[id(like)] = nn.Parameter(empty, requires_grad=False)
            self.kept.append(like)
        return self.made[id(like)]


def is_transposed(module: Any) -> bool:
    """Whether a module is a linear layer with a weight [inputs, outputs]."""
    from transformers.pytorch_utils import Conv1D

    return type(module) is Conv1D


def transposed_paths(model: nn.Module) -> Iterator[str]:
    """Paths of the linear layers with a weight [inputs, outputs]."""
    return (path for path, module in model.named_modules() if is_transposed(module))


def norm_of(module: Any) -> RMSNorm | None:
    """The part of an RMS norm of transformers; None for another module."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    kind = type(module)
    if not isinstance(getattr(module, "weight", None), nn.Parameter):
        return None
    if same_code(kind.forward, LlamaRMSNorm.forward):
        return RMSNorm(module.variance_epsilon)
    if hasattr(kind, "_norm") and same_code(kind.forward, GemmaRMSNorm.forward):
        return RMSNorm(module.eps, offset=1.0) if same_code(kind._norm, GemmaRMSNorm._norm) else None
    return None


def scale_of(table: Any) -> float | None:
    """The factor of the rows of an embedding, None for a class whose rows are made in another way."""
    from transformers.models.biogpt.modeling_biogpt import BioGptScaledWordEmbedding
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    if type(table) is nn.Embedding:
        return 1.0
    if same_code(type(table).forward, BioGptScaledWordEmbedding.forward):
        return float(table.embed_scale)
    if same_code(type(table).forward, Gemma3TextScaledWordEmbedding.forward):
        scale: float | None = getattr(table, "scalar_embed_scale", None)
        return scale
    return None


def act_of_experts(module: Any) -> str | None:
    """The activation of experts whose layout `quire_models.modules.experts.Experts` has; None for other modules."""
    from transformers.integrations.moe import _default_apply_gate

    if not hasattr(module, "is_concatenated") or not same_code(type(module)._apply_gate, _default_apply_gate):
        return None
    has_own_layout = module.is_transposed or module.has_bias or module.has_post_expert_norm
    if not (module.has_gate and module.is_concatenated) or has_own_layout or not hasattr(module, "gate_up_proj"):
        return None
    config = module.config
    try:
        return act(str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)))
    except CheckpointError:
        return None
