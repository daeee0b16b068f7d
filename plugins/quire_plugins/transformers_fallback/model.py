"""The module of a model: transformers' body with Quire's matrices, and its language head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire_models.modules.projection import apply_adapters
from quire_models.modules.stack import OpTimes
from quire_plugins.transformers_fallback.building import build_with_buffers
from quire_plugins.transformers_fallback.known_layers import StepAttention, StepMlp, attention_parts, mlp_parts
from quire_plugins.transformers_fallback.modules import BodyOutput, StepEmbedding, StepProjection
from quire_plugins.transformers_fallback.replacing import Replacement
from quire_plugins.transformers_fallback.rotary import StepRotary
from quire_plugins.transformers_fallback.same_code import same_code
from quire_plugins.transformers_fallback.state.cache import StepCache
from quire_plugins.transformers_fallback.state.rows import RowByRow
from quire_plugins.transformers_fallback.state.time_steps import limit_time_steps
from quire_plugins.transformers_fallback.step import ModelStep
from quire_plugins.transformers_fallback.verification import verify, verify_pictures

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.step.forward_batch import ForwardBatch
    from quire_plugins.transformers_fallback.part import TransformersPart


class TransformersModel(nn.Module):
    """A model of transformers with the interface of `quire_models.modules.blocks.DecoderModel`.

    embed: the embedding table, None if its class makes rows in a way of its own. head: the language head. body: the
    model without head. rest: the model around the body, which computes logits from hidden states; empty without a head.
    """

    def __init__(self, part: TransformersPart, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.ops, self.dtype, self.device = builder.ops, builder.dtype, builder.device
        self.tower: nn.Module | None = None
        self.heads = nn.ModuleDict()
        builder = builder.for_many_rows() if part.non_causal else builder
        whole = build_with_buffers(part.found, builder.dtype, builder.device)
        body = whole.get_submodule(part.traced.body_path)
        self.step = self._share_step(whole, builder)
        self._cache = StepCache(config=part.found.config) if part.traced.states else None
        self.keeping = self._compute_by_row(whole)
        spared = frozenset(whole.get_submodule(path) for path in part.traced.read_directly)
        replacement = Replacement(builder, self.step, spared=spared)
        table = body.get_input_embeddings()
        self.embed: StepEmbedding | None = replacement.embedding(table)
        self.embed_scale = 1.0 if self.embed is None else self.embed.scale
        self.body = body  # before the head, whose parameter has the name of a table that it shares
        self.head: StepProjection | None = None
        self._output = BodyOutput(body)
        if part.has_lm_head:
            self.head = replacement.head(self.embed, whole.get_output_embeddings(), part.tied)
            _put(whole, whole.get_output_embeddings(), self.head)
        if self.embed is not None:
            _put(body, table, self.embed)
        self._replace_known(whole, builder)
        replacement.replace_modules(body)
        replacement.materialize(body)
        self.rest = nn.Module()
        if part.has_lm_head:
            setattr(whole, part.traced.body_path, self._output)
            replacement.replace_modules(whole)
            replacement.materialize(whole)
            self.rest = whole
        for use in part.traced.states:
            limit_time_steps(whole.get_submodule(use.path))
        self.blocks = nn.ModuleList()  # none of Quire's
        self._plain_head = part.has_lm_head and _has_plain_head(whole)
        self._ones = torch.ones(1, 1, dtype=torch.bool, device=self.device)

    def _replace_known(self, whole: nn.Module, builder: ModuleBuilder) -> None:
        """Replace the attention and MLPs whose code Quire knows."""
        for path, (index, attention) in attention_parts(self.part.traced).items():
            width = _inputs_of(whole, f"{path}.q_proj")
            _set(whole, path, StepAttention(width, attention, builder.at_layer(index), self.step))
        for path, mlp in mlp_parts(self.part.traced.model).items():
            width = _inputs_of(whole, f"{path}.gate_proj")
            _set(whole, path, StepMlp(width, mlp, builder, self.step))

        for path, rope in self.part.traced.ropes:
            _set(whole, path, StepRotary(builder.angles(rope), self.step))

    def _compute_by_row(self, whole: nn.Module) -> list[RowByRow]:
        """Let modules that keep state compute the rows of a step one after another."""
        found = []
        for number, use in enumerate(self.part.traced.states):
            assert self._cache is not None
            module = whole.get_submodule(use.path)
            found.append(RowByRow(module, use, number, self._cache, self.step))
            module.forward = found[-1]  # type: ignore[method-assign]
        return found

    def _share_step(self, whole: nn.Module, builder: ModuleBuilder) -> ModelStep:
        """The step, given to all modules that call the interfaces."""
        traced = self.part.traced
        step = ModelStep(builder.ops, traced.calls)
        for path in {*traced.expert_paths, *(call.path for call in traced.calls)}:
            whole.get_submodule(path).quire_step = step  # type: ignore[assignment]
        return step

    def forward(self, fwd: ForwardBatch) -> Tensor:
        """Hidden states of the logit rows [L, width]; writes keys and values of all tokens to the KV cache."""
        self.step.begin(fwd)
        hidden: Tensor = self.body(**self._spliced(fwd))[0]
        return hidden[0].index_select(0, fwd.logit_rows)

    def _spliced(self, fwd: ForwardBatch) -> dict[str, Any]:
        """Arguments of the body; with media, rows of embeddings instead of tokens."""
        given = self.inputs(fwd)
        if fwd.media is not None:
            assert self.embed is not None, "checked by `find`"
            rows = self.embed(given.pop("input_ids"))
            rows[0].index_copy_(0, fwd.media.index, fwd.media.rows.to(rows.dtype))
            given["inputs_embeds"] = rows
        return given

    def inputs(self, fwd: ForwardBatch) -> dict[str, Any]:
        """Arguments of the body: the tokens of all rows as one sequence, with their positions."""
        count, offset = len(fwd.tokens), self.part.position_offset
        if self._ones.shape[1] < count:
            self._ones = torch.ones(1, 2 * count, dtype=torch.bool, device=self.device)
        given: dict[str, Any] = {
            "input_ids": fwd.tokens[None],
            "position_ids": (fwd.positions + offset if offset else fwd.positions)[None]
            if fwd.rope_positions is None
            else fwd.rope_positions[:, None],
        }
        if self.part.has_token_types:
            given["token_type_ids"] = (torch.zeros_like(fwd.tokens) if fwd.token_types is None else fwd.token_types)[
                None
            ]
        traced = self.part.traced
        if traced.cache is None:
            given["attention_mask"] = self._ones[:, :count]
        found = {name: value for name, value in given.items() if name in traced.takes}
        return found | (
            {"use_cache": False} if traced.cache is None else {traced.cache: self._cache, "use_cache": True}
        )

    def verify(self) -> None:
        """Refuse a model whose results depend on how its tokens are batched, or whose pictures are more than rows.

        Raises CheckpointError.
        """
        verify(self, self.part)
        if self.part.pictures is not None:
            verify_pictures(self, self.part)

    def embed_rows(self, ids: Tensor) -> Tensor:
        """Unscaled rows of the embedding table, [len(ids), width], for ids int64. May be called from any thread."""
        assert self.embed is not None, "this model's embedding has no table"
        return self.embed.rows(ids)

    def logits(self, hidden: Tensor, adapters: Any = None) -> Tensor:
        """hidden [rows, width] -> float32 [rows, vocab].

        adapters: what is bound for these rows; None if no adapter changes modules after the hidden states.
        """
        head = self._language_head
        if self._plain_head:
            return apply_adapters(head, head.multiply(hidden, float32=True), hidden, adapters)
        self.step.adapters, self.step.rows, self._output.hidden = adapters, len(hidden), hidden[None]
        logits: Tensor = self.rest(use_cache=False).logits[0].float()
        return logits

    def argmax(self, hidden: Tensor, adapters: Any = None) -> list[int]:
        """The most likely token of each row, computed by the head itself where it can."""
        head = self._language_head
        found = getattr(head.multiply, "argmax", None)
        if found is None or not self._plain_head or (adapters is not None and head.delta is not None):
            by_op: list[int] = self.ops.argmax(self.logits(hidden, adapters)).tolist()
            return by_op
        tokens: list[int] = found(hidden)
        return tokens

    @contextmanager
    def profile(self) -> Iterator[OpTimes]:
        """Times of fused operations, of which there are none."""
        yield OpTimes(list)

    @property
    def _language_head(self) -> StepProjection:
        assert self.head is not None, "a model without an LM head has no logits"
        return self.head


def _inputs_of(model: nn.Module, path: str) -> int:
    linear: Any = model.get_submodule(path)
    return int(linear.in_features)


def _set(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module wherever the model has it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def _has_plain_head(whole: Any) -> bool:
    """Whether logits are the head's product and nothing else, as in Llama."""
    from transformers import LlamaForCausalLM

    return same_code(type(whole).forward, LlamaForCausalLM.forward)
