"""`run`: from settings to a running server, in the order that takes the least time.

The process that runs the models has the most to read, so it is started first; FastAPI and the rest of the server
are imported meanwhile. That is why this module imports none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Sequence

from quire.config import ModelConfig
from quire.host.client import Client
from quire.host.settings import HostSettings
from quire.media.limits import MediaLimits
from quire.records import Registry
from quire.server.allocator import give_freed_memory_back
from quire.server.ending import outliving_hangups
from quire.server.first_adapters import first_adapters
from quire.server.listen import bind, check_tls
from quire.server_config import ServerConfig

COLLECT_AFTER = (20_000, 50, 50)
"""New objects until the garbage collector looks at the young ones, and how often it looks at older ones: rarely.
Nearly all of ours are freed without it, and it takes a fifth of the time of imports."""

SWITCH_INTERVAL_S = 0.001
"""How long a worker thread may keep the event loop waiting while it runs Python: a fifth of the usual."""


def run(
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    *,
    plugins: Sequence[str] | None = None,
    enable_lora: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; the exit status. Raises StartupError for what keeps it from serving.

    The status: 0 after a signal, 1 when the models could not be kept running, 128 and the signal's number when it came
    while they were loaded. After any of these the process ends, at the latest some seconds after `shutdown_timeout_s`.

    `plugins` and `enable_lora`: as the registry was loaded with, for the process that runs the models.
    `on_ready` gets the server's URL when requests are answered.
    """
    give_freed_memory_back()
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.getLogger("quire").setLevel(config.log_level.upper())
    check_tls(config)
    for model in models:
        MediaLimits.of(model, registry)  # raises now, not when everything is loaded
    with outliving_hangups(), contextlib.closing(bind(config)) as listener:
        settings = HostSettings(
            plugins=plugins,
            options=registry.options,
            enable_lora=enable_lora,
            adapters=first_adapters(models, config, registry),
            log_level=config.log_level,
            max_restarts=config.max_restarts,
            engine_timeout_s=config.engine_timeout_s,
            plugin_max_faults=config.plugin_max_faults,
        )
        client = Client(models, settings)
        client.launch()

        import uvloop

        from quire.server.run import serve

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(client, listener, models, config, registry, on_ready))
