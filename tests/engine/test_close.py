"""What an engine leaves when it is closed, also while something refers to its parts."""

import gc

import pytest

from quire.engine.build import build_engine
from quire.engine.memory.ledger import MemoryLedger, MemoryUse
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("lora", [True, False])
def test_a_closed_engine_keeps_no_weights_whatever_refers_to_them(folder, lora):
    config = ModelConfig(model=str(folder), num_pages=16, device="cpu")
    engine = build_engine(config, registry.load(None, enable_lora=lora))
    tensors = [*engine.loaded.module.parameters(), *engine.loaded.module.buffers()]
    assert sum(tensor.numel() for tensor in tensors) > 0
    gc.disable()
    try:
        engine.close()
        assert sum(tensor.numel() for tensor in tensors) == 0
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
