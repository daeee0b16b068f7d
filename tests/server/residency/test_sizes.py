"""What a model will take, before it is loaded, and budgets that are too small."""

import pytest
from engine_rig import rig_of

from quire.errors import ConfigError
from quire.server.process.registered import at_start, check_limit, check_sizes, memory_plan
from quire.server.residency.registration import Registration
from quire.server.residency.size_estimate import SizeEstimate, estimate
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def config_of(folder, **changes):
    return ModelConfig(**{"model": str(folder), "served_model_name": ("tiny",), "load": "on-demand", **changes})


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"max_model_len": 128}])
def test_the_estimate_is_what_the_engine_reserves(folder, changes):
    config = config_of(folder, **changes)
    size = estimate(config)
    with rig_of(folder, **{**changes, "num_pages": 64}) as rig:
        memory = rig.engine.memory
    assert size.weights == memory.weights
    assert size.per_token * 64 * 16 == memory.kv_cache
    assert size.sequence == size.per_token * (config.max_model_len or 512)
    assert 0 < size.largest_tensor < size.weights


def test_the_kv_cache_is_an_equal_part_of_a_quarter_but_holds_a_sequence():
    size, config = SizeEstimate(per_token=10, sequence=1000), ModelConfig(model="x")
    assert size.kv_cache(config, 400_000, 4) == 25_000
    assert size.kv_cache(config, 400_000, 1000) == 1000
    assert size.kv_cache(config, 2000, 4) == 500
    assert size.kv_cache(config, 10**12, 1) == 128 * 1000
    assert size.kv_cache(ModelConfig(model="x", kv_cache_memory_bytes=7), 400_000, 4) == 7
    assert size.kv_cache(ModelConfig(model="x", num_pages=3), 400_000, 4) == 480


def test_what_cannot_be_read_counts_nothing_and_a_missing_folder_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert estimate(config_of(tmp_path)) == SizeEstimate()
    assert estimate(config_of("owner/name")) == SizeEstimate()
    with pytest.raises(ConfigError, match=r"tiny: there is no folder or file './nowhere'"):
        check_sizes([config_of("./nowhere")], ServerConfig())


def test_a_budget_smaller_than_one_model_is_refused_with_the_numbers(folder):
    model = config_of(folder, kv_cache_memory_bytes=1 << 30)
    with pytest.raises(
        ConfigError, match=r"smaller than one model: tiny needs 1\.0 GiB \(weights 373.*KV cache 1\.0 GiB\)"
    ):
        check_sizes([model], ServerConfig(memory_budget=1 << 30))
    check_sizes([model], ServerConfig(memory_budget=2 << 30))
    found = [Registration(config=model, size=estimate(model))]
    with pytest.raises(
        ConfigError, match=r"may take 1000\.0 MiB \(--memory-budget 2\.0 GiB, less the server's processes\)"
    ):
        check_limit(found, 1000 << 20, ServerConfig(memory_budget=2 << 30))
    with pytest.raises(ConfigError, match="smaller than what the server's processes take"):
        check_limit(found, 0, ServerConfig(memory_budget=1 << 20))
    pinned = [
        Registration(config=config_of(folder, served_model_name=(name,), pinned=True), size=SizeEstimate(weights=60))
        for name in "ab"
    ]
    with pytest.raises(ConfigError, match="a, b are pinned and need"):
        check_limit(pinned, 100, ServerConfig())


def test_the_start_loads_only_what_is_not_on_demand_and_the_plan_counts_all(folder):
    models = [config_of(folder, load="startup", served_model_name=("a",)), config_of(folder)]
    assert [model.name for model in at_start(models)] == ["a"]
    assert memory_plan(models, ServerConfig()).num_models == 2
    assert memory_plan(models[:1], ServerConfig()).num_models == 0
    plan = memory_plan(models, ServerConfig(memory_budget=4 << 30))
    assert plan.for_models(free=8 << 30, own=1 << 30) < 3 << 30
    assert plan.for_models(free=1 << 30, own=1 << 30) == 1 << 30
    assert plan.for_models(free=8 << 30, own=5 << 30) == 0


@pytest.mark.parametrize("number", [0, -1])
def test_a_budget_or_bound_of_nothing_is_refused(number):
    for name in ("memory_budget", "max_model_waiters", "model_wait_timeout_s"):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} must be above 0; got {number}"):
            ServerConfig(**{name: number})
