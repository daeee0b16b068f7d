"""FlexAttention as torch computes it on a CPU, not compiled, against the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attention_options import check_options
from drawn_steps import DrawnStep, steps
from hypothesis import given, settings, strategies as st
from torch import Tensor

from quire_kernels import reference
from quire_plugins.attention import packed_rows
from quire_plugins.attention.flex.attention import FlexAttention
from quire_testing.ops.attention_cases import with_lookahead

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
WITHOUT_SINKS = (3, 4, 5, 6, 8, 9, 10)
"""Of `attention_options.options`."""


def attention(*args: Any, value_dim: None = None, **options: Any) -> Tensor:
    return FlexAttention()(*args, **options)


OPS = SimpleNamespace(paged_attention=attention, write_kv=reference.write_kv)


@given(step=steps(), single=st.booleans(), ahead=st.booleans(), softcap=st.sampled_from([None, 5.0]))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_steps(step: DrawnStep, single: bool, ahead: bool, softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = step.singles().rows if single else step.rows
    tokens = int(rows.lens_host.sum())
    rows = with_lookahead(rows, torch.randint(0, 3, (tokens,), generator=generator)) if ahead else rows
    pools = torch.randn(2, step.pages, step.page_size, 2, 16, generator=generator)
    given = (torch.randn(tokens, 4, 16, generator=generator), *pools, rows, 0.3, step.window, softcap)
    torch.testing.assert_close(attention(*given), reference.paged_attention(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", WITHOUT_SINKS)
def test_options(option: int) -> None:
    chosen = slice(option, option + 1)
    check_options(OPS, torch.float32, "cpu", [((5, 1, 8), (5, 117, 31))], [(6, 2, 24, 24)], chosen)


def test_rows_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rows, "MOST_KEYS", 40)
    check_options(OPS, torch.float32, "cpu", [((5, 1, 8), (5, 117, 31))], [(4, 4, 16, 16)], slice(0, 1))
