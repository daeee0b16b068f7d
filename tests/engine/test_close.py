"""What an engine leaves when it is closed, also while something refers to its parts."""

import gc
import json
import weakref
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from quire.engine.build import build_engine
from quire.engine.memory.ledger import MemoryLedger, MemoryUse
from quire.engine_process.engine_builder import EngineBuilder
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter
from quire_models.modules.projection import Projection
from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(("lora", "quantization"), [(True, None), (False, None), (False, "int8"), (False, "int4")])
def test_a_closed_engine_keeps_no_weights_whatever_refers_to_them(folder, lora, quantization):
    config = ModelConfig(model=str(folder), num_pages=16, device="cpu", quantization=quantization)
    engine = build_engine(config, registry.load(None, enable_lora=lora))
    engine.add(Request(id="r", prompt=Prompt(token_ids=(5, 6, 7)), params=SamplingParams(max_tokens=2)))
    while engine.has_work:
        engine.step()
    tensors = [*engine.loaded.module.parameters(), *engine.loaded.module.buffers()]
    modules = engine.loaded.module.modules()
    packed = [weakref.ref(part.multiply) for part in modules if isinstance(part, Projection)]
    assert sum(tensor.numel() for tensor in tensors) > 0
    gc.disable()
    try:
        engine.close()
        del engine, modules
        assert sum(tensor.numel() for tensor in tensors) == 0
        assert not any(ref() for ref in packed)
    finally:
        gc.enable()


def write_lora(folder, width):
    """An adapter of rank 2 for the first output projection, [width, width]."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    name = "base_model.model.model.layers.0.self_attn.o_proj"
    tensors = {f"{name}.lora_A.weight": torch.ones(2, width), f"{name}.lora_B.weight": torch.ones(width, 2)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def builder():
    made = EngineBuilder()
    yield made
    made.end()


def test_what_a_closed_engine_had_is_gone_without_the_garbage_collector(folder, tmp_path, builder):
    config = ModelConfig(model=str(folder), num_pages=16, device="cpu")
    engine = builder.build(config, registry.load(None, enable_lora=True), 1)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    engine.load_adapter("one", write_lora(tmp_path / "one", width))
    adapters = (WeightedAdapter(AdapterRef(name="one")),)
    prompt, params = Prompt(token_ids=(5, 6, 7)), SamplingParams(max_tokens=2)
    engine.add(Request(id="r", prompt=prompt, params=params, adapters=adapters))
    while engine.has_work:
        engine.step()
    parts = [weakref.ref(part) for part in (engine, engine.loaded.module, engine.adapters.host_cache)]
    gc.disable()
    try:
        builder.close(engine)
        del engine
        assert not any(part() for part in parts)
    finally:
        gc.enable()


def test_memory_of_a_closed_engine_is_free_although_it_refers_to_itself(builder):
    class Closed:
        def __init__(self):
            self.itself, self.loaded = self, SimpleNamespace(module=Projection)

        def close(self):
            pass

    engine = Closed()
    left = weakref.ref(engine)
    gc.disable()
    try:
        builder.close(engine)
        del engine
        assert left() is not None
        builder.free_memory()
        assert left() is None
    finally:
        gc.enable()


def test_progress_grows_to_one_and_what_it_raises_ends_the_load(folder):
    seen = []
    config = ModelConfig(model=str(folder), num_pages=16, device="cpu")
    build_engine(config, registry.load(["llama"]), on_progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert len(seen) > 5

    def stop(fraction):
        raise KeyError(fraction)

    with pytest.raises(KeyError):
        build_engine(config, registry.load(["llama"]), on_progress=stop)


def test_a_reservation_ends_when_its_model_leaves_and_other_processes_count():
    ledger = MemoryLedger(1000)

    class Model:
        pass

    model = Model()
    ledger.enter(model, "m", MemoryUse(weights=400))
    assert ledger.budget().total == 600
    assert ledger.budget(free=100).total == 100
    assert ledger.budget(free=5000).total == 600
    ledger.leave(model)
    ledger.leave(model)
    assert (ledger.reserved, ledger.budget().total) == (0, 1000)
