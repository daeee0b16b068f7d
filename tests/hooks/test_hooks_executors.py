"""Executors of plugins: ranks of a model in processes that a plugin starts."""

import logging
from pathlib import Path
from random import Random

import pytest
from engine_rig import greedy, random_ids, rig_of
from plugin_site import PluginSite

from quire.errors import CheckpointError, ConfigError, PluginFailed
from quire.hooks.registry import load
from quire.settings.model_config import ModelConfig
from quire_testing import check_executor, tiny_llama

PLUGIN = """import os, subprocess, sys
from quire.plugin import ConfigError

SHARES_PATH = True

class Process:
    def __init__(self, program):
        words = [sys.executable, "-P", "-m", program.module, *program.arguments]
        path = {"PYTHONPATH": os.pathsep.join(sys.path)} if SHARES_PATH else {}
        self.process = subprocess.Popen(words, env={**os.environ, **program.environment, **path})
    def problem(self):
        status = self.process.poll()
        return None if status is None else f"exit status {status}"
    def end(self):
        self.process.kill()
        self.process.wait()

class Here:
    address = "127.0.0.1"
    def __init__(self, context):
        if not context.options["places"]:
            raise ConfigError("there are no places")
        self.local = context.size
    def start(self, program):
        return Process(program)

@hookimpl
def quire_executors(): yield Executor("here", Here)

@hookimpl
def quire_options(): yield Option("places", int, 1, "places for ranks")"""

SETTINGS = {"tensor_parallel_size": 2, "distributed_executor_backend": "here"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.process
def test_hook_executors_start_ranks_that_answer_as_one_process(site: PluginSite, model: Path) -> None:
    site.add("mine", PLUGIN)
    registry = load(["llama", "mine"])
    prompts = [random_ids(Random(i), 12) for i in range(2)]
    with rig_of(model, registry) as rig:
        wanted = rig.tokens(prompts, greedy(6, ignore_eos=True))
    with rig_of(model, registry, **SETTINGS) as rig:
        assert rig.tokens(prompts, greedy(6, ignore_eos=True)) == wanted
        process = rig.engine._ranks._followers[1].started.process
        assert process.poll() is None
    assert process.poll() is not None


@pytest.mark.process
def test_an_executor_that_keeps_the_contract(site: PluginSite) -> None:
    site.add("mine", PLUGIN)
    record = load(["mine"]).by_hook("quire_executors")["here"]
    check_executor(record, options={"places": 1}, size=2)


@pytest.mark.process
def test_a_rank_that_cannot_start_is_named_at_once(
    site: PluginSite, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    site.add("mine", PLUGIN.replace("program.module", "'no_such_module'"))
    with (
        pytest.raises(ConfigError, match="Rank 1 has ended before it joined the first one: exit status 1"),
        rig_of(model, load(["llama", "mine"]), **SETTINGS),
    ):
        pass


@pytest.mark.process
def test_a_rank_that_lacks_a_plugin_says_so(site: PluginSite, model: Path) -> None:
    site.add("mine", PLUGIN.replace("SHARES_PATH = True", "SHARES_PATH = False"))
    with (
        pytest.raises(CheckpointError, match="There is no plugin 'mine'"),
        rig_of(model, load(["llama", "mine"]), **SETTINGS),
    ):
        pass


def test_an_executor_without_places_or_with_a_fault_stops_the_start(site: PluginSite, model: Path) -> None:
    site.add("mine", PLUGIN)
    with (
        pytest.raises(ConfigError, match="there are no places"),
        rig_of(model, load(["llama", "mine"], options={"mine": {"places": 0}}), **SETTINGS),
    ):
        pass
    site.add("broken", "@hookimpl\ndef quire_executors(): yield Executor('here', lambda context: 1 / 0)")
    with (
        pytest.raises(PluginFailed, match="ZeroDivisionError"),
        rig_of(model, load(["llama", "broken"]), **SETTINGS),
    ):
        pass


def test_unknown_executors_are_refused_with_the_names_of_the_known() -> None:
    config = ModelConfig(model="m", distributed_executor_backend="best")
    with pytest.raises(ConfigError, match="must be one of uni, mp, external_launcher, ray; got 'best'"):
        config.executor_record(load([]))
    with pytest.raises(ConfigError, match="the executor finds machines itself"):
        ModelConfig(model="m", tensor_parallel_size=2, nnodes=2, distributed_executor_backend="ray")
