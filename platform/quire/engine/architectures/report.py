"""What would build a model, and what its sequences take: without loading its weights."""

from __future__ import annotations

from typing import Any

from quire import hub
from quire.engine.architectures.choice import choose_architecture
from quire.engine.architectures.description import Description
from quire.engine.memory.state_budget import CHECKPOINTS_PER_SEQ, checkpoint_interval
from quire.errors import QuireError
from quire.records import ArchitectureQuery, Registry
from quire.settings.model_config import ModelConfig
from quire.types.model_info import bytes_in_words
from quire_models import KVCache, StateCache
from quire_models.loading import checkpoint


def model_report(config: ModelConfig, registry: Registry, dtype: Any) -> dict[str, str]:
    """Facts by name; why the model cannot be built, if so. dtype: torch's, of keys, values and state."""
    try:
        folder = hub.locate(config.model, config).folder
        parsed = checkpoint.read_config(folder, config.trust_remote_code, hub.config_cache(config.download_dir))
        query = ArchitectureQuery(tuple(parsed.architectures), parsed, folder, config.trust_remote_code)
        chosen = choose_architecture(config.model_impl, query, registry)
        decoder = Description(chosen.architecture, parsed, chosen.plugin).decoder()
    except QuireError as error:
        return {"model": config.model, "not built": error.message}
    by = f"the fallback {chosen.plugin}" if chosen.is_fallback else f"the plugin {chosen.plugin}"
    facts = {"model": config.model, "built by": f"{by}, as {chosen.architecture.name}"}
    per_page = KVCache.page_bytes(decoder.kv_shapes, config.page_size, dtype)
    per_slot = StateCache.slot_bytes(decoder.state_shapes, dtype)
    facts["KV cache"] = f"{bytes_in_words(per_page // config.page_size)} per token" if per_page else "none"
    if not per_slot:
        return facts | {"state": "none"}
    pages = checkpoint_interval(config, per_page, per_slot)
    slots = f"{config.max_num_seqs} slots for sequences (--max-num-seqs)"
    count, most = config.num_state_checkpoints, config.max_num_seqs * CHECKPOINTS_PER_SEQ
    kept = f"at most {most}" if count is None else str(count)
    facts["state"] = f"{bytes_in_words(per_slot)} per sequence and per checkpoint"
    facts["state slots"] = f"{slots}, {kept} for checkpoints, every {pages * config.page_size} tokens"
    return facts
