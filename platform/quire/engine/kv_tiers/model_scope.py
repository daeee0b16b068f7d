"""Finds the digest of a model's checkpoint in the background; its pages have no keys before.

Reading a large checkpoint takes a while, so the digest is kept in the tiers too, for as long as no file is written.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from threading import Event

from quire.engine.kv_tiers.blobs import StoredPage
from quire.engine.kv_tiers.daemon_threads import DaemonThreads
from quire.engine.kv_tiers.digests import content_digest, state_digest
from quire.engine.kv_tiers.keys import KEY_BYTES, PageKeys, scope_digest, weight_paths
from quire.engine.kv_tiers.tier_stack import TierStack
from quire.engine.loading.load import LoadedModel
from quire.settings.model_config import ModelConfig

log = logging.getLogger(__name__)

DIGEST_BYTES = 32
NICENESS = 10
"""Of the thread. At idle priority it would never come to an end on a machine that is busy from the start."""


class ModelScope:
    """Sets `PageKeys.scope` of a loaded model. Files that changed after it was loaded are not noticed before."""

    def __init__(self, config: ModelConfig, loaded: LoadedModel, stack: TierStack, keys: PageKeys) -> None:
        self._stack, self._keys = stack, keys
        self._stopping, self.done = Event(), Event()
        self._threads = DaemonThreads("kv-digests", 1, _run_nicely)
        self._paths = weight_paths(config, loaded)
        self._state = blake2b(b"".join(map(state_digest, self._paths)), digest_size=KEY_BYTES).hexdigest()
        self._threads.submit(partial(self._find, partial(scope_digest, config, loaded), config.name))

    def _find(self, scope: partial[bytes], name: str) -> None:
        try:
            places = self._stack.find([self._state])
            known = self._stack.get([self._state], places, None)
            if known and len(known[0].payload) == DIGEST_BYTES:
                self._keys.scope = scope(bytes(known[0].payload))
                return
            digests = [content_digest(path, lambda: not self._stopping.is_set()) for path in self._paths]
            digest = blake2b(b"".join(digests), digest_size=DIGEST_BYTES).digest()
            if blake2b(b"".join(map(state_digest, self._paths)), digest_size=KEY_BYTES).hexdigest() != self._state:
                log.warning("The KV pages of %s are kept on the device only: its files have changed.", name)
                return
            self._stack.put(self._state, StoredPage(digest), range(len(self._stack.tiers)))
            self._keys.scope = scope(digest)
        except Exception as error:
            if not self._stopping.is_set():
                log.warning("The KV pages of %s are kept on the device only: %s.", name, error)
        finally:
            self.done.set()

    def close(self) -> None:
        """Give the digest up."""
        self._stopping.set()
        self._threads.close()


def _run_nicely() -> None:
    with suppress(AttributeError, OSError):  # only Linux has a priority for each thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
