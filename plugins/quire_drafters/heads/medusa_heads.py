"""The modules of Medusa heads, and their checkpoints: those of the paper's repository, and those with vLLM's names.

    0.0.linear.weight   blocks.0.layers.0.weight   [width, width]   block 0 of head 0; bias [width] if there is one
    0.1.weight          lm_heads.0.weight          [vocab, width]   head 0, which predicts the token after the next
    lm_head.weight                                 [vocab, width]   of all heads (original_lm_head)

With `original_lm_head` in config.json and neither of the last two, all heads use the LM head of the model.

A prefix `medusa_head.` or `medusa_heads.` is accepted. The numbers of heads and blocks are those of the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quire.errors import ConfigError
from quire.plugin import DrafterContext, Projection
from quire_drafters.heads.head_files import HeadFiles, find_heads
from quire_models.modules.builder import ModuleBuilder

MAX_HEADS = 64
MAX_BLOCKS = 16
SINGLE_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_BLOCK = re.compile(r"(?:medusa_heads?\.)?(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)")
_HEAD = re.compile(r"(?:medusa_heads?\.)?(?:(\d+)\.\d+|lm_heads\.(\d+))\.weight")


class MedusaHeads:
    """Head i: x + silu(block(x)) for each of its blocks, then a projection to the vocabulary.

    first: the first blocks of all heads as one matrix. rest: the other blocks of each head. heads: the projection of
    each, None for the LM head of the model.
    """

    def __init__(
        self, first: Projection, rest: Sequence[Sequence[Projection]], heads: Sequence[Projection | None]
    ) -> None:
        self.first, self._rest, self.heads = first, tuple(tuple(blocks) for blocks in rest), tuple(heads)

    @property
    def num_weights(self) -> int:
        """Elements of all matrices."""
        every = {self.first, *(block for blocks in self._rest for block in blocks), *self.heads} - {None}
        return sum(matrix.inputs * matrix.outputs for matrix in every if matrix is not None)

    def inputs(self, x: Tensor, count: int) -> Tensor:
        """Hidden states [rows, width] -> what the projections of the first `count` heads get, [rows, count, width]."""
        changes = functional.silu(self.first.multiply(x), inplace=True).view(len(x), len(self.heads), -1)
        is_whole = count == len(self.heads)
        inputs = changes.add_(x.unsqueeze(1)) if is_whole else changes[:, :count].add(x.unsqueeze(1))
        if any(self._rest):
            inputs = torch.stack([self._with_rest(inputs[:, i].contiguous(), i) for i in range(count)], 1)
        return inputs

    def _with_rest(self, x: Tensor, head: int) -> Tensor:
        for block in self._rest[head]:
            x = x + functional.silu(block.multiply(x))
        return x


def load_heads(context: DrafterContext) -> MedusaHeads:
    """The heads in the folder that the settings name. Raises ConfigError."""
    target = context.target
    files = HeadFiles(find_heads(context), SINGLE_FILES)
    for key, size in (("hidden_size", target.decoder.width), ("vocab_size", target.decoder.vocab)):
        files.check_size(key, files.config.get(key), size, f"the model {context.model}")
    blocks, heads = _names(files)
    _check_numbers(files, blocks, heads)
    builder = ModuleBuilder(target.ops, target.dtype, target.device, keep_weights=False)
    width, vocab, count = target.decoder.width, target.decoder.vocab, len(blocks)
    has_shared = "lm_head.weight" in files.tensors and not heads
    shared = _projection(builder, files, [("lm_head.weight", None)], vocab, width) if has_shared else None
    return MedusaHeads(
        _projection(builder, files, [blocks[i][0] for i in range(count)], width, width),
        [
            [
                _projection(builder, files, [names], width, width)
                for number, names in sorted(blocks[i].items())
                if number
            ]
            for i in range(count)
        ],
        [_projection(builder, files, [(heads[i], None)], vocab, width) if heads else shared for i in range(count)],
    )


def _names(files: HeadFiles) -> tuple[dict[int, dict[int, tuple[str, str | None]]], dict[int, str]]:
    """Names of weight and bias of each block by head, and of each head's projection."""
    blocks: dict[int, dict[int, tuple[str, str | None]]] = {}
    heads: dict[int, str] = {}
    for name in files.tensors:
        if (match := _BLOCK.fullmatch(name)) is not None:
            head, block = (int(digits) for digits in match.group(1, 2, 3, 4) if digits is not None)
            weight = name.removesuffix("bias") + "weight" if match.group(5) == "bias" else name
            bias = name if match.group(5) == "bias" else blocks.get(head, {}).get(block, ("", None))[1]
            blocks.setdefault(head, {})[block] = (weight, bias)
        elif (match := _HEAD.fullmatch(name)) is not None:
            heads[int(match.group(1) or match.group(2))] = name
        elif name != "lm_head.weight":
            raise ConfigError(f"{files.folder}: {name!r:.120} is not a tensor of Medusa heads.")
    return blocks, heads


def _check_numbers(files: HeadFiles, blocks: dict[int, dict[int, Any]], heads: dict[int, str]) -> None:
    uses_models = not heads and files.config.get("original_lm_head") is True
    if ("lm_head.weight" not in files.tensors and not uses_models) or heads:
        for head in blocks.keys() ^ heads.keys():
            what = "a projection to the vocabulary" if head in blocks else "blocks"
            raise ConfigError(f"{files.folder} lacks {what} for the head {head}.")
    count = len(blocks)
    if not 1 <= count <= MAX_HEADS or sorted(blocks) != list(range(count)):
        raise ConfigError(
            f"{files.folder} must hold the heads 0 to at most {MAX_HEADS - 1}; it has {sorted(blocks)[:9]}."
        )
    for key in ("medusa_num_heads", "num_heads"):
        if isinstance(given := files.config.get(key), int) and given < count:
            raise ConfigError(f"{files.folder}: `{key}` is {given}, but there are tensors of {count} heads.")
    for head, own in blocks.items():
        if len(own) > MAX_BLOCKS or sorted(own) != list(range(len(own))):
            raise ConfigError(f"{files.folder}: the blocks of the head {head} must be 0 to at most {MAX_BLOCKS - 1}.")


def _projection(
    builder: ModuleBuilder, files: HeadFiles, names: Sequence[tuple[str, str | None]], outputs: int, inputs: int
) -> Projection:
    """Matrices of [outputs, inputs], with one below the other. names: of weight and bias of each."""
    has_bias = any(bias for _, bias in names)
    made = builder.projection(inputs, outputs * len(names), bias=has_bias)
    for i, (weight, bias) in enumerate(names):
        rows = slice(i * outputs, (i + 1) * outputs)
        made.weight.data[rows] = files.read(weight, (outputs, inputs))
        if made.bias is not None:
            made.bias.data[rows] = files.read(bias, (outputs,)) if bias else 0
    made.process_weights()
    return made
