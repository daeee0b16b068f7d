"""Loads a draft model and gives it pages of its own, within the memory budget of the model that it drafts for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire import hub
from quire.engine.loading.load import LoadedModel, load_model
from quire.engine.loading.op_choice import dtype_name
from quire.engine.memory.ledger import MemoryBudget
from quire.engine.runner.forward_executor import ForwardExecutor
from quire.engine.runner.input_batch import InputBatch
from quire.engine.runner.sizes import RunnerSizes
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.speculation.draft_model.draft_adapters import (
    EVERY,
    DraftAdapters,
    load_draft_adapters,
    no_adapters,
)
from quire.engine.speculation.draft_model.draft_cache import DraftCache, DraftSeq
from quire.engine.speculation.draft_model.draft_sampler import DraftSampler
from quire.engine.speculation.draft_model.model_drafter import ModelDrafter
from quire.engine.speculation.draft_model.vocabulary import check_vocabulary
from quire.errors import ConfigError, StartupError
from quire.records import Context, DraftQuery, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.speculative_config import FLAG
from quire_models import KVCache

FEED_TOKENS = 512
"""Prompt tokens of sequences without drafts yet that the draft model computes in a step: a step waits for them."""


@dataclass(frozen=True, kw_only=True)
class DraftModelLoader:
    """config, target, context: of the model that is served. budget: of both models, before the pages of the target.
    wants_probs, draft_folders: see `DrafterContext`."""

    config: ModelConfig
    registry: Registry
    target: LoadedModel
    context: Context
    budget: MemoryBudget
    max_drafts: int
    wants_probs: bool
    draft_folders: Mapping[str, Path]

    def __call__(self, settings: Mapping[str, Any]) -> ModelDrafter:
        """A drafter with the model of `settings`: `model`, `lora`, and fields of `ModelConfig`. Raises ConfigError."""
        model = settings["model"]
        try:
            loaded = load_model(self._config(settings), self.registry, self.budget.total - self.target.weight_bytes)
            self._check(loaded)
        except StartupError as error:
            raise ConfigError(
                f"{FLAG}: the draft model {model!r} cannot be used: {error.message.rstrip('.')}."
            ) from error
        adapters = self._adapters(settings.get("lora"), loaded)
        return self._drafter(loaded, adapters, settings.get("kv_cache_memory_bytes"))

    def _config(self, settings: Mapping[str, Any]) -> ModelConfig:
        served = self.config
        given = {"dtype": dtype_name(self.target.dtype), **settings, "model": self._folder(settings["model"])}
        given.pop("lora", None)
        try:
            return ModelConfig(
                device=served.device,
                page_size=served.page_size,
                hub=served.hub,
                download_dir=served.download_dir,
                weights_cache=served.weights_cache,
                weights_cache_bytes=served.weights_cache_bytes,
                trust_remote_code=served.trust_remote_code,
                max_num_seqs=served.max_num_seqs,
                **given,
            )
        except TypeError as error:
            raise ConfigError(f"a setting has a value of the wrong type ({error})") from error

    def _folder(self, model: str) -> str:
        """The folder of a demo's draft model, if that is its name; else as it is given."""
        return str(self.draft_folders.get(model, model)) if not Path(model).exists() else model

    def _check(self, loaded: LoadedModel) -> None:
        """Raise ConfigError unless the model can draft for the target."""
        decoder, target = loaded.decoder, self.target
        if not decoder.has_lm_head or decoder.non_causal:
            raise ConfigError("it generates no text")
        if any(shape is not None for shape in decoder.state_shapes):
            raise ConfigError("its recurrent state cannot be rolled back to before rejected drafts")
        if decoder.encoder_input is not None:
            raise ConfigError("it reads the output of an encoder")
        tokenizer = hub.resolve_tokenizer(self.config, Path(target.info.folder))
        check_vocabulary(Path(loaded.info.folder), decoder.vocab, tokenizer, target.decoder.vocab)

    def _drafter(self, loaded: LoadedModel, adapters: DraftAdapters, kv_bytes: int | None) -> ModelDrafter:
        config, decoder = self.config, loaded.decoder
        length = min(loaded.info.max_model_len, self.target.info.max_model_len)
        num_pages = self._num_pages(loaded, length, kv_bytes)
        kv = KVCache.allocate(decoder.kv_shapes, num_pages, config.page_size, loaded.kv_dtype, loaded.device)
        sizes = RunnerSizes(
            num_pages=num_pages,
            num_host_pages=0,
            page_size=config.page_size,
            max_tokens=config.max_num_seqs * (self.max_drafts + 1) + FEED_TOKENS,
            max_rows=config.max_num_seqs,
            max_model_len=length,
        )
        batch = InputBatch(sizes.max_rows, sizes.max_pages, config.page_size, decoder.position_axes)
        cache = DraftCache(
            PagePool(num_pages, config.page_size, caching=False),
            length,
            self.max_drafts,
            FEED_TOKENS,
            partial(_start, batch, adapters),
            partial(_end, batch, adapters),
        )
        return ModelDrafter(
            ForwardExecutor(loaded, sizes, kv, adapters.mapping, batch_invariant=False),
            batch,
            cache,
            DraftSampler(loaded.module, loaded.ops, self.target.decoder.vocab, self.wants_probs),
            config.max_num_seqs,
            decoder.vocab,
            loaded.weight_bytes + num_pages * _page_bytes(loaded, config) + adapters.memory_bytes,
            adapters,
        )

    def _adapters(self, lora: str | Mapping[str, str] | None, loaded: LoadedModel) -> DraftAdapters:
        if not lora:
            return no_adapters(self.registry, loaded)
        given = {EVERY: lora} if isinstance(lora, str) else lora
        return load_draft_adapters(given, self.config, self.registry, loaded, self.context)

    def _num_pages(self, loaded: LoadedModel, length: int, kv_bytes: int | None) -> int:
        """Pages for about as many tokens as the target will have, at most for sequences of the maximum length.

        Raises ConfigError if there is no room for a page.
        """
        config, per_page = self.config, _page_bytes(loaded, self.config)
        share = per_page / (per_page + _page_bytes(self.target, config))
        if kv_bytes is not None:
            num_pages = kv_bytes // per_page
        elif config.num_pages is not None:
            num_pages = config.num_pages
        elif config.kv_cache_memory_bytes is not None:
            num_pages = config.kv_cache_memory_bytes // _page_bytes(self.target, config)
        else:
            rest = (self.budget.total - self.target.weight_bytes - loaded.weight_bytes) // 2
            num_pages = int(share * min(self.budget.kv_cache, rest)) // per_page
        num_pages = min(num_pages, config.max_num_seqs * -(-length // config.page_size))
        if num_pages < 1:
            raise ConfigError(f"{FLAG}: no memory is left for the KV cache of the draft model.")
        return num_pages


def _start(batch: InputBatch, adapters: DraftAdapters, seq: DraftSeq, query: DraftQuery) -> None:
    batch.start(seq.id, seq.sampling, query.token_ids[: query.prompt_len], None)
    adapters.start(query)


def _end(batch: InputBatch, adapters: DraftAdapters, seq_id: int) -> None:
    batch.end(seq_id)
    adapters.mapping.end(seq_id)


def _page_bytes(loaded: LoadedModel, config: ModelConfig) -> int:
    return max(1, KVCache.page_bytes(loaded.decoder.kv_shapes, config.page_size, loaded.kv_dtype))
