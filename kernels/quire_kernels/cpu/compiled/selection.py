"""Selects the logit rows of a program as early as possible.

Nothing after the last keys and values of a program depends on tokens whose logits are not computed. So those tokens
are left out from there on: of a prompt, its last block computes little more than keys and values.
"""

from __future__ import annotations

from ctypes import Array

from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.structs import EARLY, EARLY_END, PRODUCTS, Instruction, Op, TensorView

BY_TOKEN = frozenset(
    (
        *PRODUCTS,
        Op.RMS_NORM,
        Op.ADD_RMS_NORM,
        Op.LAYER_NORM,
        Op.ATTENTION,
        Op.GATED_ACT,
        Op.ACT,
        Op.ADD,
        Op.SCALE,
        Op.MULTIPLY,
        Op.GATED_RMS_NORM,
        Op.ROUTE,
        Op.MOE,
        Op.JOIN_PARTS,
        Op.PRODUCT_HEADS,
        Op.CLAMP,
        Op.ALL_REDUCE,
        Op.SHRINK,
        Op.LOW_RANK,
    )
)
"""Operations of which a token's result depends on no other token of the step, except through the KV cache."""


def select_early(tracer: Tracer) -> list[Instruction]:
    """The instructions, with those before the selection that need no other tokens marked as `EARLY`.

    What they read of all tokens is selected into new buffers. In a step whose rows do not end with their logit rows,
    `EARLY` instructions work on all tokens.
    """
    code = tracer.instructions
    end = next((i for i, instruction in enumerate(code) if instruction.op == Op.SELECT), 0)
    begin = end
    while begin > 0 and code[begin - 1].op in BY_TOKEN and not code[begin - 1].of_encoder:
        begin -= 1
    if not any(instruction.op in PRODUCTS for instruction in code[begin:end]):
        return code
    early = [Instruction.from_buffer_copy(instruction) for instruction in code[begin : end + 1]]
    before = {view.buffer for instruction in code[:begin] for view in _views(instruction)} | {0}
    read = sorted({view.buffer for instruction in early for view in _views(instruction)} & before)
    moved = {buffer: tracer.new(tracer.widths[buffer]).buffer for buffer in read}
    for instruction in early:
        instruction.selected = EARLY
        for view in _views(instruction):
            view.buffer = moved.get(view.buffer, view.buffer)
    early[-1].selected = EARLY_END
    gathers = [_gather(tracer, buffer, to) for buffer, to in moved.items()]
    return [*code[:begin], *gathers, *early, *code[end + 1 :]]


def _views(instruction: Instruction) -> list[TensorView]:
    """The views of an instruction that name buffers."""
    inputs: Array[TensorView] = instruction.inputs
    named = 1 if instruction.op == Op.ATTENTION else len(inputs)  # the others describe keys and values
    return [view for view in [*inputs[:named], instruction.out] if view.parts]


def _gather(tracer: Tracer, buffer: int, to: int) -> Instruction:
    width = tracer.widths[buffer]
    views = (TensorView * 3)(TensorView(buffer, 1, 0, width, width), TensorView(), TensorView())
    return Instruction(op=Op.SELECT, inputs=views, out=TensorView(to, 1, 0, width, width), selected=EARLY)
