"""What an engine leaves when it is closed, also while something refers to its parts."""

import gc
import weakref

import pytest

from quire.engine.build import build_engine
from quire.engine.memory.ledger import MemoryLedger, MemoryUse
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request
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
