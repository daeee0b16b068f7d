"""Runs the largest possible step of a model to measure the device memory that it takes besides weights and pages."""

from __future__ import annotations

import numpy as np
import torch

from quire.engine.graphs.capture import graph_bytes
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.dummy_batch import dummy_batch
from quire.settings.model_config import ModelConfig
from quire_models import TowerCall
from quire_models.towers.tower import SupportsDummyInput


@torch.inference_mode()
def activation_bytes(loaded: LoadedModel, config: ModelConfig, max_tokens: int) -> int:
    """Peak bytes on a CUDA device of a step of `max_tokens` tokens or of the tower's largest call, and the bytes of
    captured steps.
    """
    step = _step_bytes(loaded, max_tokens, config.max_num_seqs, config.page_size)
    return max(step, _tower_bytes(loaded, config)) + graph_bytes(loaded, config)


def _tower_bytes(loaded: LoadedModel, config: ModelConfig) -> int:
    """Peak bytes of the largest call of the tower; 0 if there is none, or it provides no dummy input."""
    tower, device = loaded.module.tower, loaded.device
    if not isinstance(tower, SupportsDummyInput):
        return 0
    item, num_rows = tower.dummy_input()
    items = [item] * (1 if config.batch_invariant else max(1, config.max_num_encoder_tokens // num_rows))
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    tower(items, TowerCall(device))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak


def _step_bytes(loaded: LoadedModel, max_tokens: int, max_rows: int, page_size: int) -> int:
    """Peak bytes of a step with `max_rows` rows of logits."""
    source, device = loaded.decoder.encoder_input, loaded.device
    length = min(max_tokens, loaded.info.max_model_len - (0 if source is None else source.padded_length))
    lens = np.full(-(-max_tokens // length), length, np.int32)
    lens[-1] = max_tokens - length * (len(lens) - 1)
    batch = dummy_batch(loaded, lens, min(max_rows, max_tokens), page_size)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    last = loaded.module(batch)
    if loaded.decoder.has_lm_head:
        last = torch.softmax(loaded.module.logits(last), -1).mul_(2.0).floor_()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del batch, last
    torch.cuda.empty_cache()
    return peak
