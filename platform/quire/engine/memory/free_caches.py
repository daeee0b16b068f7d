"""Frees the caches of an engine that takes no requests, and keeps its weights."""

from __future__ import annotations

from quire.engine.runner.model_runner import ModelRunner
from quire.engine.scheduler.scheduler import Scheduler
from quire.isolation.background_work import BackgroundWork


def free_caches(runner: ModelRunner, scheduler: Scheduler, preparation: BackgroundWork) -> bool:
    """Give the memory of the KV cache back to the system, if the device can; otherwise nothing changes.

    The pages keep their addresses, so that programs which refer to them stay valid; they hold zeros and get memory
    again when they are written. The state of recurrent blocks, which is small, is kept. preparation: allocates that
    memory in advance; it ends.
    """
    if runner.kv.num_pages and runner.kv.k[0].device.type != "cpu":
        return False
    preparation.stop()
    scheduler.reset_prefix_cache()
    runner.reset()
    return runner.kv.return_memory() and runner.host_kv.return_memory()
