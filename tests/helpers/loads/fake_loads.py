"""The part of a client without an engine that loads and unloads models, and descriptions of such models."""

import asyncio
from dataclasses import replace
from pathlib import Path

from quire.engine_process.engine_models import SLEEP_TAGS, Sleep
from quire.errors import BadRequest, CheckpointError, NotFound
from quire.types import ModelInfo
from quire_testing.tiny import END_ID, VOCAB_SIZE


def info(name="tiny", **changes):
    given = ModelInfo(
        name=name,
        aliases=(name,),
        root=f"models/{name}",
        folder=f"/nowhere/{name}",
        architecture="LlamaForCausalLM",
        dtype="float32",
        device="cpu",
        max_model_len=128,
        vocab_size=VOCAB_SIZE,
        eos_ids=(END_ID,),
        num_pages=64,
        page_size=16,
        num_parameters=1000,
    )
    return replace(given, **changes)


class PretendSleepers:
    """Models that sleep and wake at once. calls: what came. refusal: raised by the next wake."""

    def __init__(self):
        self.sleeping, self.calls, self.refusal = {}, [], None

    def sleep_of(self, name):
        return self.sleeping.get(name)

    async def sleep(self, model, level=1, abort=True):
        self.calls.append((model, level, abort))
        self.sleeping[model] = Sleep(level, has_weights=level == 1)

    async def wake(self, model, tags=SLEEP_TAGS):
        self.calls.append((model, tags))
        if self.refusal is not None:
            raise self.refusal
        if (sleep := self.sleeping.pop(model, None)) is not None and (left := sleep.tags - {*tags}):
            self.sleeping[model] = replace(sleep, tags=left)


class PretendLoads:
    """Loads and unloads at once. loading, configs, unloaded: what came. drain: unloads wait for it.

    memory_limit: bytes for all models. sizes: bytes of models, by name. gates: loads of a name wait for its event.
    """

    def __init__(self):
        self.memory_limit, self.sizes, self.gates, self.loads = 0, {}, {}, []
        self.loading, self.configs, self.unloaded = {}, {}, []
        self.drain = asyncio.Event()
        self.drain.set()
        self.sleepers = PretendSleepers()

    def load_progress(self, model):
        return 0.25 if model in self.loading else 0.0

    def on_model_lost(self, on_lost):
        self.lose = on_lost

    async def load(self, config):
        """Half of a load of `held` waits until it is unloaded. A folder "corrupt" cannot be loaded."""
        self.loading[config.name] = asyncio.Event()
        try:
            if Path(config.model).name == "corrupt":
                raise CheckpointError("The file x is truncated.")
            self.loads.append(config.name)
            if config.name in self.gates:
                await self.gates[config.name].wait()
            if Path(config.model).name == "held":
                await self.loading[config.name].wait()
                raise BadRequest(f"The model `{config.name}` was unloaded while it was being loaded.", "name")
        finally:
            del self.loading[config.name]
        folder, aliases = str(Path(config.model).resolve()), config.served_model_name
        made = info(config.name, aliases=aliases, root=config.model, folder=folder, weight_bytes=1000)
        made = replace(made, memory_bytes=self.sizes.get(config.name, 0))
        self.infos = (*self.infos, made)
        self.configs[config.name] = config
        return made

    async def unload(self, model, force=False):
        self.unloaded.append((model, force))
        if model in self.loading:
            self.loading[model].set()
            return
        if model not in [one.name for one in self.infos]:
            raise NotFound(f"The model `{model}` does not exist.")
        if force:
            self.drain.set()
        await self.drain.wait()
        self.infos = tuple(one for one in self.infos if one.name != model)
        self.adapters.infos = {name: one for name, one in self.adapters.infos.items() if one.model != model}

    def register_adapter(self, adapter):
        self.adapters.infos[adapter.name] = adapter
