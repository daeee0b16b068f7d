"""The KV pages of one model as a part of the memory that models share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.engine.elastic.decisions import PoolState
from quire.engine.elastic.elastic_pool import ElasticPagePool
from quire.engine.kv_events.page_log import PageListener
from quire.engine.scheduler.page_pool import PagePool

if TYPE_CHECKING:
    from quire.engine.loading.load import LoadedModel
    from quire.engine.memory.state_budget import CacheSizes
    from quire.engine.runner.model_runner import ModelRunner
    from quire.engine.scheduler.scheduler import Scheduler
    from quire.settings.model_config import ModelConfig
    from quire_models import KVCache

MUCH_USED = 0.5
"""A pool lacks pages if sequences wait and this share of it is in use, because a waiting one needs several pages."""


@dataclass(frozen=True)
class KvPages:
    """The pool of a model and its memory. least: pages that the model keeps. is_waiting: whether sequences wait."""

    pool: ElasticPagePool
    memory: KVCache
    least: int
    share: int
    is_waiting: Callable[[], bool]

    @property
    def page_bytes(self) -> int:
        return sum(pool[0].nbytes for pool in self.memory.k + self.memory.v)

    @property
    def held_bytes(self) -> int:
        """Memory of usable pages, and of others that are in use."""
        return (self.pool.num_pages + self.pool.num_over) * self.page_bytes

    def state(self, name: str, idle_s: float) -> PoolState:
        """idle_s: seconds since the model has had requests."""
        pool = self.pool
        return PoolState(
            name=name,
            page_bytes=self.page_bytes,
            num_pages=pool.num_pages,
            num_over=pool.num_over,
            share=self.share,
            least=self.least,
            most=pool.capacity,
            demands=self.is_waiting() and pool.num_used >= MUCH_USED * pool.num_pages,
            idle_s=idle_s,
        )

    def resize(self, num_pages: int) -> None:
        """Change the number of usable pages, between steps."""
        self.pool.resize(num_pages)

    def release(self) -> None:
        """Give the memory of pages that are not usable back to the system."""
        self.memory.release(self.pool.drain_released())


def page_pool(sizes: CacheSizes, config: ModelConfig, loaded: LoadedModel, log: PageListener | None) -> PagePool:
    """The pool of a model's pages on the device; an elastic one if it may get more pages later."""
    caching = config.enable_prefix_caching and not loaded.decoder.non_causal
    if sizes.capacity > sizes.num_pages:
        return ElasticPagePool(sizes.num_pages, config.page_size, caching, log, capacity=sizes.capacity)
    return PagePool(sizes.num_pages, config.page_size, caching, log)


def kv_pages(pool: PagePool, runner: ModelRunner, max_model_len: int, scheduler: Scheduler) -> KvPages | None:
    """What may move of a model's pages; None if their number is fixed. max_model_len: tokens of a sequence at most."""
    if not isinstance(pool, ElasticPagePool):
        return None
    least = min(pool.num_pages, pool.pages_for(max_model_len))
    return KvPages(pool, runner.kv, least, pool.num_pages, lambda: any(True for _ in scheduler.waiting()))
