"""Attention back ends on this machine's GPU: results against the reference, and times of two steps.

python tests/gpu/run.py --parts backends
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from engines import Client, engine_of, plugins
from torch.utils.benchmark import Timer

from quire.engine.loading.op_choice import op_query
from quire_kernels import reference
from quire_kernels.attention import PagedAttention
from quire_kernels.select import choose
from quire_testing.ops.attention_cases import rows_of
from quire_testing.ops.cases import RandomInputs
from quire_testing.tiny import tiny_llama

NAMES = ("triton", "torch", "xformers", "flashinfer", "flash-attn")
TOLERANCE = 3e-2
PAGES = {"flash-attn": 256}
"""Tokens of a page, 16 for others."""
STEPS = [((1, 1, 1, 1), (3000, 1, 700, 70)), ((200, 1, 3), (410, 900, 500)), ((33,), (33,))]
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"window": 64}, {"softcap": 20.0})
TIMED = {"decode 64 x 2048": ((1,) * 64, (2048,) * 64), "prefill 2048": ((2048,), (2048,))}


def run(name: str) -> dict[str, Any]:
    """What a back end gives; `skipped` says why it cannot run."""
    page_size = PAGES.get(name, 16)
    query = op_query(torch.device("cuda", 0), torch.bfloat16, page_size=page_size, head_dims=(128,))
    registry = plugins()
    ops = [(registry.plugin_of("quire_ops", key), impl) for key, impl in registry.by_hook("quire_ops").items()]
    chosen = choose(replace(query, attention_backend=name), ops)
    report = next(each for each in chosen.report if each.op == "paged_attention")
    if report.name != name:
        return {"ok": True, "skipped": {each.name: each.reason for each in report.rejected}.get(name, "unknown")}
    found: dict[str, Any] = {"ok": False}
    try:
        found["worst"] = max(_differences(chosen.paged_attention, page_size))
        found["ms"] = {what: _time(chosen.paged_attention, page_size, *step) for what, step in TIMED.items()}
        found["tokens_agree"] = _answers(name, page_size) == _answers("triton", page_size)
        found["ok"] = found["worst"] < TOLERANCE and found["tokens_agree"]
    except Exception:
        found["error"] = traceback.format_exc(limit=-6)
    return found


def _differences(attention: PagedAttention, page_size: int) -> Iterator[float]:
    draw = RandomInputs(torch.bfloat16, torch.device("cuda"), torch.Generator().manual_seed(1), page_size)
    for heads, kv_heads, dim in ((8, 8, 64), (32, 8, 128)):
        for lens, contexts in STEPS:
            rows, pages = rows_of(draw, lens, contexts)
            pools = draw(pages, page_size, kv_heads, dim), draw(pages, page_size, kv_heads, dim)
            q = draw(sum(lens), heads, dim)
            for options in OPTIONS:
                wide = (x.float() for x in (q, *pools))
                wanted = reference.paged_attention(*wide, rows, dim**-0.5, **options)
                found = attention(q, *pools, rows, dim**-0.5, **options)
                assert found.shape == wanted.shape
                yield (found.float() - wanted).abs().nan_to_num(1e9).max().item()


def _time(attention: PagedAttention, page_size: int, lens: tuple[int, ...], contexts: tuple[int, ...]) -> float:
    """Milliseconds of a call in a step whose first block has made what others share."""
    draw = RandomInputs(torch.bfloat16, torch.device("cuda"), torch.Generator().manual_seed(1), page_size)
    rows, pages = rows_of(draw, lens, contexts)
    pools = draw(pages, page_size, 8, 128), draw(pages, page_size, 8, 128)
    q = draw(sum(lens), 32, 128)
    timer = Timer("attention(q, *pools, rows, scale)", globals={**locals(), "scale": 128**-0.5})
    return round(timer.blocked_autorange(min_run_time=0.2).median * 1e3, 4)


def _answers(name: str, page_size: int) -> list[list[int]]:
    """Of a tiny model in bfloat16, whose logits are far apart."""
    prompts = [[*range(7, 7 + length)] for length in (40, 3, 17)]
    settings = {"num_pages": 16 if page_size > 16 else 64, "page_size": page_size, "max_model_len": 128}
    with TemporaryDirectory() as folder, torch.inference_mode():
        tiny_llama(Path(folder), hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
        with engine_of(Path(folder), "cuda", attention_backend=name, dtype="bfloat16", **settings) as engine:
            return Client(engine).answers(prompts, 16)
