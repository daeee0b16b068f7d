"""`platform bench route`: the router of the server, driven by simulated replicas and time."""

import json

import pytest

from quire.cli import main
from quire.engine_process.replicas import client
from quire.errors import ConfigError
from quire.records import Context
from quire.routing.router import RequestRouter
from quire.types import Request
from quire_bench.routing import simulation
from quire_bench.routing.replica import ReplicaSpeed
from quire_bench.routing.simulation import RoutingSimulation
from quire_bench.routing.trace import TraceSettings, from_file, generated
from quire_plugins.routing import POLICIES

SMALL = TraceSettings(num_requests=2000, rate=80, num_adapters=200, num_prefixes=50)


def simulate(policy, trace, replicas=8, **speed):
    return RoutingSimulation(replicas, POLICIES[policy](Context()), ReplicaSpeed(**speed)).run(trace)


def test_the_simulator_calls_the_router_of_the_server_as_the_server_does(monkeypatch):
    assert simulation.RequestRouter is client.RequestRouter is RequestRouter
    calls, place = [], RequestRouter.place

    def recording(self, model, request, available):
        calls.append((type(model), type(request), type(available)))
        return place(self, model, request, available)

    monkeypatch.setattr(RequestRouter, "place", recording)
    result = simulate("prefix", generated(SMALL))
    assert calls == [(str, Request, int)] * 2000
    assert len(result.ttft_s) == 2000


def test_the_policies_of_the_server_are_compared_and_those_of_plugins_too(site, capsys):
    site.add(
        "mine",
        """class First:
    def choose(self, candidates): return candidates.replicas[0]
@hookimpl
def quire_routing_policies(): yield RoutingPolicy("first", lambda context: First())""",
    )
    words = ["bench", "--plugins", "+mine", "route", "--replicas", "4", "--num-requests", "50", "--json"]
    assert main([*words, "--policies", "first", "least-loaded"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert found["first"]["imbalance"] == pytest.approx(4)
    assert main([*words, "--policies", "second"]) == 2
    assert "must be one of" in capsys.readouterr().err


def test_prefixes_and_adapters_are_worth_following():
    found = {name: simulate(name, generated(SMALL)).figures() for name in POLICIES}
    assert found["prefix"]["hit_rate"] > 1.2 * found["round-robin"]["hit_rate"] > 0
    assert found["prefix"]["adapter_loads"] < 0.7 * found["least-loaded"]["adapter_loads"]
    assert found["prefix"]["ttft_mean_ms"] < found["least-loaded"]["ttft_mean_ms"]
    assert all(1 <= figures["imbalance"] < 1.5 for figures in found.values())


def test_a_trace_is_the_same_for_the_same_seed_and_has_bursts():
    settings = TraceSettings(num_requests=3000, rate=20)
    first, second = (list(generated(settings)) for _ in range(2))
    assert first == second
    burst = sum(arrival.at_s % 60 < 6 for arrival in first)
    assert burst / 3000 == pytest.approx(3 * 6 / (3 * 6 + 54), rel=0.2)
    assert first[-1].at_s == pytest.approx(150, rel=0.2)


def test_a_full_replica_lets_requests_wait_and_everything_ends():
    result = simulate("round-robin", generated(SMALL), replicas=1, max_seqs=2)
    assert len(result.ttft_s) == 2000
    assert result.ttft_s[-1] > result.ttft_s[0]


def line(**fields):
    return json.dumps({"at_s": 0, "prompt_token_ids": [1, 2], "max_tokens": 3, **fields})


def test_traces_are_read_in_both_formats(tmp_path):
    file = tmp_path / "trace.jsonl"
    mooncake = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]}
    file.write_text(f"{line(adapter='poems')}\n\n{json.dumps(mooncake)}\n")
    first, second = from_file(str(file))
    assert (first.at_s, first.request.prompt.token_ids, first.num_generated) == (0, (1, 2), 3)
    assert [use.ref.name for use in first.request.adapters] == ["poems"]
    assert (second.at_s, second.num_generated) == (1.5, 7)
    assert second.request.prompt.token_ids == (4,) * 512 + (9,) * 88


@pytest.mark.parametrize(
    "wrong",
    [
        "no json",
        "[]",
        line(max_tokens=None),
        line(prompt_token_ids=None),
        line(at_s=-1),
        '{"hash_ids": 3}',
        line(at_s=1e999),
    ],
)
def test_a_line_that_is_not_a_request_is_named(tmp_path, wrong):
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{line()}\n{wrong}\n")
    with pytest.raises(ConfigError, match=r"line 2 of .* is not a request"):
        list(from_file(str(file)))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(from_file(str(tmp_path / "missing")))


def test_the_command_prints_a_table_or_json(capsys, tmp_path):
    words = ["bench", "route", "--replicas", "4", "--num-requests", "50", "--output-json", str(tmp_path / "out")]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("prefix", "TTFT", "p50 ms"))
    assert main([*words, "--json", "--policies", "prefix"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["policies"].keys() == {"prefix"}
    assert 0 < printed["policies"]["prefix"]["hit_rate"] < 1
    assert json.loads((tmp_path / "out").read_text())["title"] == printed["title"]
    assert main(["bench", "route", "--replicas", "5000"]) == 2
    assert "at most 4096" in capsys.readouterr().err
