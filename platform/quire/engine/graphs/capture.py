"""Decides whether the decode steps of a model are captured, measures the memory of that, and captures them."""

from __future__ import annotations

import logging

import torch

from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.loading.load import LoadedModel
from quire.engine.runner.sizes import RunnerSizes
from quire.settings.model_config import ModelConfig
from quire_kernels.candidates.capture import is_capturable
from quire_models import KVCache
from quire_models.graphs.buckets import MAX_ROWS, buckets
from quire_models.graphs.decode_graphs import CapturedAdapters, DecodeGraphs
from quire_models.graphs.recorder import recorder_of
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.experts import Experts

log = logging.getLogger(__name__)

PAGED = ("paged_attention", "write_kv", "rotary_write_kv")


def graph_rows(loaded: LoadedModel, config: ModelConfig) -> int:
    """Rows of the largest decode step to capture; 0 if none is captured."""
    if recorder_of(loaded.device) is None or config.enforce_eager or config.batch_invariant:
        return 0
    reason = why_not(loaded)
    if reason is not None:
        log.info("%s runs without CUDA graphs: %s", loaded.info.name, reason)
    return 0 if reason else min(config.max_num_seqs, MAX_ROWS)


def why_not(loaded: LoadedModel) -> str | None:
    """Why decode steps of a model cannot be captured, None if they can."""
    decoder = loaded.decoder
    if not isinstance(loaded.module, DecoderModel):
        return "its plugin builds it of other modules than those of Quire"
    if decoder.non_causal or decoder.encoder_input is not None:
        return "it does not only decode"
    if any(shape is not None for shape in decoder.state_shapes):
        return "its blocks keep a state"
    experts = [each for each in loaded.module.modules() if isinstance(each, Experts)]
    needed = [*PAGED, *(["moe"] if experts else [])]
    chosen = {choice.op: choice.name for choice in loaded.ops.report}
    for op in needed:
        if not is_capturable(getattr(loaded.ops, op)):
            return f"{op} of {chosen[op]!r} needs the host in every step"
    if not all(getattr(each.bound, "capturable", True) for each in experts):
        return f"moe of {chosen['moe']!r} multiplies quantized experts one by one"
    return None


def capture(loaded: LoadedModel, sizes: RunnerSizes, kv: KVCache, adapters: AdapterMapping) -> DecodeGraphs | None:
    """The captured decode steps of a model; None if `sizes` ask for none, or if the model cannot be captured."""
    found = adapters.captured if sizes.graph_rows and is_capturable(loaded.ops.low_rank) else None
    captured = None if found is None else CapturedAdapters(*found)
    graphs = _graphs(loaded, kv, sizes.graph_rows, sizes.max_model_len, sizes.page_size, sizes.max_rows, captured)
    if graphs is None:
        return None
    try:
        graphs.capture()
    except Exception:  # also those of a plugin's modules
        log.warning("%s runs without CUDA graphs: a step cannot be captured", loaded.info.name, exc_info=True)
        return None
    if loaded.device.type == "cuda":
        torch.cuda.empty_cache()  # what the steps took that were run before their capture
    return graphs


@torch.inference_mode()
def graph_bytes(loaded: LoadedModel, config: ModelConfig) -> int:
    """Bytes that `capture` will take on the device, measured with the largest step and with the smallest.

    Every other step takes what the smallest does: its tensors are where those of the largest are. Those of adapters are
    small.
    """
    device, rows = loaded.device, graph_rows(loaded, config)
    if not rows:
        return 0
    kv = KVCache.allocate(loaded.decoder.kv_shapes, 1, config.page_size, loaded.kv_dtype, device)
    used, every = [_used(device)], buckets(rows)
    graphs = _graphs(loaded, kv, rows, loaded.info.max_model_len, config.page_size)
    assert graphs is not None, "there are rows to capture"
    try:
        for size in (every[-1], every[0]):
            graphs.capture((size,))
            used.append(_used(device))
    except Exception:
        return 0  # `capture` says why
    finally:
        del graphs, kv
        torch.cuda.empty_cache()
    has_adapters = any(getattr(each, "delta", None) is not None for each in loaded.module.modules())
    kinds = 2 if has_adapters and is_capturable(loaded.ops.low_rank) else 1
    return used[1] - used[0] + (used[2] - used[1]) * (kinds * len(every) - 1)


def _graphs(
    loaded: LoadedModel,
    kv: KVCache,
    rows: int,
    length: int,
    page_size: int,
    max_sampled: int = 0,
    adapters: CapturedAdapters | None = None,
) -> DecodeGraphs | None:
    recorder = recorder_of(loaded.device) if rows else None
    if recorder is None:
        return None
    return DecodeGraphs(
        loaded.module,
        kv,
        recorder,
        max_rows=rows,
        max_len=length,
        max_pages=-(-length // page_size),
        width=loaded.decoder.width,
        position_axes=loaded.decoder.position_axes,
        max_sampled=max_sampled,
        adapters=adapters,
    )


def _used(device: torch.device) -> int:
    """Bytes of the device that are in use, by anything."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free
