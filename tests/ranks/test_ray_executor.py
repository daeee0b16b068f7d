"""Ranks as actors of Ray, on two nodes of a cluster within this machine."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_rig import Rig, greedy, random_ids, rig_of

from quire.errors import ConfigError
from quire.hooks import registry
from quire_testing.tiny import byte_tokenizer, reference_model, save

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own modules
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'quire-serve[ray]'")
    from ray.cluster_utils import Cluster
    from ray.util.state import list_actors

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

PROMPTS = [random_ids(Random(i), 20) for i in range(3)]
SETTINGS = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save(reference_model("LlamaForCausalLM"), path)
    return byte_tokenizer(path)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    with rig_of(folder, registry.load(None)) as rig:
        return tokens(rig)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two nodes, and this process as a driver."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes.add_node(num_cpus=2)
    ray.init(address=nodes.address, log_to_driver=False)
    yield
    ray.shutdown()
    nodes.shutdown()


def tokens(rig: Rig) -> list[list[int]]:
    return rig.tokens(PROMPTS, greedy(8, ignore_eos=True))


def actors() -> list[Any]:
    """Those of ranks, which live, with `node_id` and `pid`."""
    return list(list_actors(filters=[("class_name", "=", "RankActor"), ("state", "=", "ALIVE")]))


def test_ranks_on_two_nodes_answer_as_one_and_what_they_reserved_is_free_afterwards(
    cluster: None, folder: Path, wanted: list[list[int]]
) -> None:
    with rig_of(folder, registry.load(None), **SETTINGS) as rig:
        assert tokens(rig) == wanted
        (actor,) = actors()
        assert actor.node_id != ray.get_runtime_context().get_node_id()
        (group,) = [g for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
        assert len(set(group["bundles_to_node_id"].values())) == 2
    assert not actors()
    assert {g["state"] for g in ray.util.placement_group_table().values()} == {"REMOVED"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_actor_ends_the_group_and_the_next_one_has_its_room(
    cluster: None, folder: Path, wanted: list[list[int]], number: signal.Signals
) -> None:
    with rig_of(folder, registry.load(None), **SETTINGS) as rig:
        (actor,) = actors()
        ranks = rig.engine._ranks
        os.kill(actor.pid, number)
        with ranks._changed:
            assert ranks._changed.wait_for(lambda: ranks.has_failed, 60)
    with rig_of(folder, registry.load(None), **SETTINGS) as rig:
        assert tokens(rig) == wanted


def test_a_cluster_without_room_is_a_sentence(cluster: None, folder: Path) -> None:
    settings = {**SETTINGS, "tensor_parallel_size": 4, "distributed_timeout_s": 0.5}
    held = ray.util.placement_group([{"CPU": 2}, {"CPU": 2}])  # all: what other tests held may come back late
    try:
        assert held.wait(60)
        with (
            pytest.raises(ConfigError, match=r"no room for 4 ranks .* within 0.5 s .*: 0 of its 4 CPUs on 2 machines"),
            rig_of(folder, registry.load(None), **settings),
        ):
            pass
    finally:
        ray.util.remove_placement_group(held)
