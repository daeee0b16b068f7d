"""Ranks on several machines, which are processes of this one here: they answer as one does, and are replaced."""

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import httpx
import pytest
from engine_rig import greedy, random_ids, rig_of
from serving import POLL_S, Server, free_port, serving
from torch.distributed import TCPStore

from quire.engine.parallel.nodes.addresses import listen
from quire.engine.parallel.nodes.gather import gather
from quire.engine.parallel.nodes.join import join
from quire.engine.parallel.nodes.place import Place, check_place, place_of
from quire.errors import ConfigError
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import byte_tokenizer, reference_model, save

PROMPT = random_ids(Random(0), 20)
FLAGS = ("--dtype", "float32", "--num-pages", "32", "--distributed-timeout-s", "60")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save(reference_model("LlamaForCausalLM"), path)
    return byte_tokenizer(path)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[int]:
    with rig_of(folder, registry.load(None), num_pages=32) as rig:
        return rig.tokens([PROMPT], greedy(8, ignore_eos=True))[0]


def tokens(server: Server) -> list[int]:
    body = {"model": "m", "prompt": PROMPT, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json={**body, "return_token_ids": True}, timeout=60)
    assert answer.status_code == 200, f"{answer.text}\n{server.output()}"
    return answer.json()["choices"][0]["token_ids"]


def child_of(pid: int) -> int:
    """The process that another one has started."""
    while True:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
                if int(parent) == pid and b"ranks.joined" in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return int(entry)
            except OSError:
                continue
        time.sleep(POLL_S)


@pytest.mark.process
def test_two_nodes_of_two_ranks_answer_as_one_and_a_stopped_rank_is_replaced(folder: Path, wanted: list[int]) -> None:
    nodes = ("--tensor-parallel-size", "4", "--nnodes", "2", "--master-port", str(free_port()))
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(serving(f"m={folder}", *FLAGS, *nodes, "--node-rank", str(rank), ready=False))
            for rank in range(2)
        )
        first.wait_ready()
        assert tokens(first) == wanted
        stopped = child_of(second.process.pid)
        os.kill(stopped, signal.SIGSTOP)
        # Not `wait_ready`: that holds until the engine process that has lost a rank has ended, too.
        while "the engine process takes requests again" not in first.output():
            assert first.process.poll() is None, first.output()
            time.sleep(POLL_S)
        assert tokens(first) == wanted
        assert child_of(second.process.pid) != stopped
        assert first.stop() == 0
        assert second.process.wait(60) == 0, second.output()
        assert "this node joins again" in second.output()


@pytest.mark.process
def test_processes_of_torchrun_answer_as_one(folder: Path, wanted: list[int]) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{store.port}"}
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    flags = (*FLAGS, "--tensor-parallel-size", "2", "--distributed-executor-backend", "external_launcher")
    with ExitStack() as stack:
        second, first = (
            stack.enter_context(serving(f"m={folder}", *flags, ready=False, env={**variables, "RANK": str(rank)}))
            for rank in (1, 0)
        )
        first.wait_ready()
        assert tokens(first) == wanted
        assert first.stop() == 0
        assert second.process.wait(60) == 0, second.output()


def place(port: int | None = None, **values: object) -> Place:
    found = Place(
        host="127.0.0.1",
        port=free_port() if port is None else port,
        size=2,
        first=0,
        count=1,
        local=1,
        by_store=False,
        timeout_s=20.0,
    )
    return replace(found, **values)


class Joining:
    """A rank that joins in a thread. said: why it could not."""

    def __init__(self, found: Place, rank: int = 1) -> None:
        self.said = ""
        self._thread = threading.Thread(target=self._join, args=(found, rank))
        self._thread.start()

    def _join(self, found: Place, rank: int) -> None:
        try:
            join(found, rank)
        except ConfigError as error:
            self.said = error.message

    def refusal(self) -> str:
        self._thread.join()
        return self.said


def meet(leading: Place, joining: Place, rank: int = 1) -> tuple[str, str]:
    """What the first rank says about one that joins, and what that one says."""
    with listen(leading) as listener:
        other = Joining(joining, rank)
        with pytest.raises(ConfigError) as refused:
            gather(leading, listener)
    return refused.value.message, other.refusal()


def test_a_rank_of_another_group_is_refused_on_both_sides() -> None:
    found = place()
    both = meet(found, replace(found, size=3))
    assert both[0] == both[1] == "Rank 1 at 127.0.0.1 was started as one of 3 ranks, the first rank as one of 2."
    assert "must be from 1 to 1" in meet(found, found, rank=2)[1]


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.engine.parallel.nodes.join.version", lambda name: "0.0.1")
    found = place()
    assert "has version 0.0.1 of Quire, the first rank has" in meet(found, found)[1]


def test_a_number_that_two_ranks_have_is_refused() -> None:
    found = place(size=3)
    with listen(found) as listener, socket.create_connection(listener.getsockname()) as idle:
        idle.close()  # what connects and says nothing is no rank
        ranks = Joining(found), Joining(found)
        with pytest.raises(ConfigError, match="Rank 1 has joined already"):
            gather(found, listener)
        assert all("another one at 127.0.0.1 has the same number" in rank.refusal() for rank in ranks)


def test_ranks_that_do_not_come_are_named() -> None:
    found = place(timeout_s=0.05, size=3)
    with listen(found) as listener, pytest.raises(ConfigError, match=r"within 0.05 s .*: rank 1, 2 has not joined"):
        gather(found, listener)


def test_a_first_rank_that_does_not_listen_is_a_sentence() -> None:
    found = place(timeout_s=0.05)
    with pytest.raises(ConfigError, match=rf"no first rank at 127.0.0.1:{found.port} within 0.05 s .*refused"):
        join(found, 1)


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--master-port {port}: the port is in use"):
            listen(place(port))


def test_an_address_without_a_machine_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"--master-addr no-such-host\.invalid: the first rank cannot listen there"):
        listen(place(host="no-such-host.invalid"))


def test_ranks_of_a_node_are_neighbors() -> None:
    config = ModelConfig(model="m", tensor_parallel_size=4, nnodes=2, node_rank=1, master_addr="a", master_port=7)
    found = place_of(config, {})
    assert found is not None
    assert (found.first, found.count, found.local, found.host, found.port) == (2, 2, 2, "a", 7)
    assert not found.leads
    assert place_of(ModelConfig(model="m", tensor_parallel_size=4), {"RANK": "1"}) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nnodes": 0}, "--nnodes must be above 0"),
        ({"nnodes": 2, "node_rank": 2}, "--node-rank must be from 0 to 1, as --nnodes is 2"),
        (
            {"nnodes": 2, "tensor_parallel_size": 3},
            "--tensor-parallel-size 3: the 3 ranks must be a multiple of --nnodes 2",
        ),
        ({"nnodes": 2, "tensor_parallel_size": 2, "master_port": 70000}, "--master-port must be from 1 to 65535"),
        (
            {"nnodes": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"},
            "give --nnodes to torchrun",
        ),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelConfig(model="m", **settings)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "which torchrun sets; there is no RANK, WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "has started 3 processes"),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "is no number"),
    ],
)
def test_variables_of_torchrun_are_checked(environ: dict[str, str], said: str) -> None:
    config = ModelConfig(model="m", tensor_parallel_size=2, distributed_executor_backend="external_launcher")
    with pytest.raises(ConfigError, match=said):
        place_of(config, environ)


def test_only_one_model_and_one_engine_process_can_be_on_several_nodes() -> None:
    config = ModelConfig(model="m", tensor_parallel_size=2, nnodes=2)
    with pytest.raises(ConfigError, match="are for one model; there are 2"):
        check_place([config, config], 1, {})
    with pytest.raises(ConfigError, match="--data-parallel-size is 2"):
        check_place([config], 2, {})
