"""Projections: their names, deltas of adapters, packed weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from parts_rig import DECODER, model_of
from torch import Tensor

from quire_kernels import select
from quire_models.loading import weight_names as names
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.projection import projections
from quire_models.testing import ChunkSpec, ModelDriver


def test_projections_are_found_by_the_names_adapters_use() -> None:
    found = projections(model_of(DECODER))
    qkv, rows = found[names.LLAMA.rename("model.layers.1.self_attn.k_proj")]
    assert (qkv.inputs, qkv.outputs, rows) == (16, 64, slice(32, 48))
    assert found["blocks.0.attn.o"][1] is None
    assert found["head"][0].outputs == 20


def test_a_delta_sees_inputs_and_outputs_and_only_when_the_step_has_adapters() -> None:
    model = model_of(DECODER)
    driver = ModelDriver(model, DECODER, [[1, 2, 3]])
    seen: list[tuple[Any, ...]] = []

    def delta(y: Tensor, x: Tensor, adapters: Any) -> Tensor:
        seen.append((y.shape, x.shape, adapters))
        return y + 1

    model.blocks[1].mlp.down.delta = delta
    plain = model(driver.forward([ChunkSpec(0, 1)]))
    assert seen == []
    fwd = driver.forward([ChunkSpec(0, 2)])
    fwd.adapters = "slots"
    changed = model(fwd)
    assert seen == [((2, 16), (2, 24), "slots")]
    assert plain.shape == (1, 16)
    assert changed.isfinite().all()


def test_a_weight_may_be_packed_when_it_is_bound_and_is_bound_again_when_it_changes() -> None:
    bound: list[Tensor] = []

    def linear(weight: Tensor, bias: Tensor | None, gated: bool = False) -> Any:
        packed = weight.detach().T.contiguous()
        bound.append(packed)
        return lambda x, float32=False: x @ packed

    builder = ModuleBuilder(select.reference(), torch.float32, torch.device("cpu"), linear=linear)
    projection = builder.projection(2, 3)
    projection.weight.data.fill_(1.0)
    assert bound == [], "nothing is packed before there are weights"
    fwd: Any = SimpleNamespace(adapters=None)
    assert projection(torch.ones(1, 2), fwd).tolist() == [[2.0, 2.0, 2.0]]
    projection.weight.data.mul_(2)
    projection.process_weights()
    assert projection(torch.ones(1, 2), fwd).tolist() == [[4.0, 4.0, 4.0]]
    assert len(bound) == 2


def test_a_quantization_applies_to_encoders_but_not_to_towers_and_routers() -> None:
    ops = select.reference()
    builder = ModuleBuilder(ops, torch.float32, torch.device("cpu"), linear=ops.linear_int8)
    assert builder.projection(4, 4).is_quantized
    assert builder.for_many_rows().projection(4, 4).is_quantized
    assert not builder.unquantized().projection(4, 4).is_quantized
    assert not builder.unquantized().for_many_rows().projection(4, 4).is_quantized
