"""A host process whose engines need no model: `python -m fake_host <endpoint>`; also used in-process.

A request gives one token per step: its number of tokens so far. Special token ids in a prompt make an
engine misbehave; special model names make loading misbehave.
"""

import os
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Thread

from quire.engine_process import process
from quire.errors import BadRequest, CheckpointError, ConfigError, NotFound
from quire.types import EngineStats, ModelInfo, SeqDelta
from quire.types.adapter_info import AdapterInfo

REFUSED, RAISES, DIES, NEVER_ENDS, SEQ_ERROR = 100, 101, 102, 103, 104


class FakeShelf:
    """Adapters without files. Their paths say how loading goes: "bad" fails, "gate:FIFO" waits for the pipe to open."""

    def __init__(self, model):
        self.model, self.known, self.revision = model, {}, 0

    def infos(self):
        return list(self.known.values())

    def load(self, name, path, *, pinned=False, replacing=True, keep_failure=False):
        if name in self.known and not replacing:
            raise BadRequest(f"{name} is loaded.", "lora_name")
        self.revision += 1
        info = AdapterInfo(name=name, model=self.model, path=str(path), revision=self.revision, pinned=pinned)
        future = Future()
        if str(path).startswith("gate:"):
            Thread(target=self._load, args=(future, info), daemon=True).start()
        else:
            self._load(future, info)
        return future

    def _load(self, future, info):
        if info.path.startswith("gate:"):
            Path(info.path.removeprefix("gate:")).read_text()
        if info.path == "bad":
            future.set_exception(BadRequest(f"{info.name} is bad.", "lora_path"))
            return
        info = replace(info, state="ready", tier="host")
        before = self.known.get(info.name)
        if before is not None and before.revision > info.revision:
            info = replace(info, state="retired")
        else:
            self.known[info.name] = info
        future.set_result(info)

    def restore(self, info):
        self.revision += 1
        self.known[info.name] = replace(info, tier="disk", revision=self.revision)

    def unload(self, name):
        if name not in self.known:
            raise NotFound(f"{name} is not loaded.")
        del self.known[name]
        done = Future()
        done.set_result(None)
        return done


class FakeEngine:
    def __init__(self, name, aliases=()):
        self.info = ModelInfo(
            name=name,
            aliases=tuple(aliases),
            root=name,
            folder=name,
            architecture="Fake",
            dtype="float32",
            device="cpu",
            max_model_len=1000,
            vocab_size=1000,
            eos_ids=(),
            num_pages=1,
            page_size=16,
            num_parameters=0,
        )
        self.requests, self.steps, self.aborted, self.closed = {}, [], [], False
        self.failed_steps = self.num_step_tokens = 0
        self.adapters = FakeShelf(name)

    @property
    def has_work(self):
        return any(NEVER_ENDS not in request.prompt.token_ids for request, _ in self.requests.values())

    @property
    def num_generating(self):
        return sum(count > 0 for _, counts in self.requests.values() for count in counts.values())

    def add(self, request):
        if REFUSED in request.prompt.token_ids:
            raise BadRequest("No such thing.", "prompt")
        self.requests[request.id] = (request, dict.fromkeys(range(request.params.num_seqs), 0))

    def abort(self, request_id, index=None):
        self.aborted.append((request_id, index))
        found = self.requests.get(request_id)
        if found is None:
            return
        if index is not None:
            found[1].pop(index, None)
        if index is None or not found[1]:
            del self.requests[request_id]

    def step(self, max_tokens=None, max_background=0):
        self.steps.append(max_tokens)
        deltas = []
        for request, counts in list(self.requests.values()):
            self.failed_steps += 1  # unless it gets to the end
            self._misbehave(request)
            for index in list(counts):
                deltas.append(self._advance(request, counts, index))
            if not counts:
                del self.requests[request.id]
            self.failed_steps = 0
        return [delta for delta in deltas if delta is not None]

    def _misbehave(self, request):
        if RAISES in request.prompt.token_ids:
            raise MemoryError("no room")
        if DIES in request.prompt.token_ids:
            os.kill(os.getpid(), 9)

    def _advance(self, request, counts, index):
        if NEVER_ENDS in request.prompt.token_ids:
            return None
        counts[index] += 1
        if SEQ_ERROR in request.prompt.token_ids and index == 1:
            del counts[index]
            error = ("PluginFailed", "a processor failed")
            return SeqDelta(request_id=request.id, index=index, finish_reason="error", error=error)
        ended = counts[index] >= request.params.max_tokens
        delta = SeqDelta(
            request_id=request.id,
            index=index,
            token_ids=(counts[index],),
            finish_reason="length" if ended else None,
        )
        if ended:
            del counts[index]
        return delta

    def stats(self):
        return EngineStats(model=self.info.name, num_running=len(self.requests), num_steps_total=len(self.steps))

    def close(self):
        self.closed = True


def build(config, registry, num_left, on_progress=None):
    if config.model == "corrupt":
        raise CheckpointError("The file x is truncated.")
    if config.model == "fault":
        raise RuntimeError("something unforeseen")
    if config.model == "deadly":
        os._exit(7)
    if config.model.startswith("once:"):  # loads the first time only
        marker = Path(config.model.removeprefix("once:"))
        try:
            marker.touch(exist_ok=False)  # two processes may load it at the same time
        except FileExistsError:
            raise CheckpointError("It is gone.") from None
    if config.model.startswith("gate:"):  # loads when the named pipe is opened
        Path(config.model.removeprefix("gate:")).read_text()
    if config.model.startswith("steps:"):  # half of it, then the rest when the named pipe is opened
        on_progress(0.5)
        Path(config.model.removeprefix("steps:")).read_text()
        on_progress(1.0)
    name, *aliases = config.served_model_name or (config.model,)
    return FakeEngine(name, aliases)


class FakeBuilder:
    def __init__(self, share=None, kv_events=None, plan=None):
        pass

    build = staticmethod(build)

    def close(self, engine):
        engine.close()

    def can_free_caches(self, config):
        return "gpu" not in config.model

    def free_caches(self, config, engine):
        engine.has_caches = not self.can_free_caches(config)
        return not engine.has_caches

    def restore_caches(self, config, engine):
        if "crowded" in config.model:
            raise ConfigError("There is too little memory.")
        engine.has_caches = True

    def end(self):
        pass

    def free_memory(self):
        pass

    def memory_limit(self):
        return 0

    def log_memory(self):
        pass


if __name__ == "__main__":
    process.EngineBuilder = FakeBuilder
    sys.exit(process.main(sys.argv[1]))
