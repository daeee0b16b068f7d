"""`platform serve` as a process of its own, as users start it, and what they do to it."""

import json
import os
import signal
import subprocess
import threading

import httpx
import pytest
from serving import command, serving

from quire_testing.tiny import tiny_llama, tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "a", seed=1)
    tiny_model(root / "b", "Qwen2ForCausalLM", seed=2)
    return root


@pytest.fixture(scope="module")
def server(folders):
    flags = ("--dtype", "float32", "--num-pages", "400", "--max-model-len", "512")
    with serving(f"a={folders / 'a'}", f"b={folders / 'b'}", *flags) as server:
        yield server


def complete(server, **body):
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8, "ignore_eos": True, **body}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def stream(server, **body):
    """Yield the events of a streamed completion as parsed JSON; [DONE] as it is."""
    body = {"prompt": "x", "temperature": 0, "ignore_eos": True, "stream": True, **body}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: "):
                yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def metric(server, name, model):
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith(f"{name}{{") and f'model_name="{model}"' in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name} of {model}")


def test_two_models_answer_at_once_each_with_its_own_weights(server):
    alone = {name: complete(server, model=name).json()["choices"][0]["text"] for name in ("a", "b")}
    assert alone["a"] != alone["b"]
    together = {}

    def ask(number, name):
        together[number, name] = complete(server, model=name).json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(n, name)) for n in range(4) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(name, text) for (_, name), text in together.items()} == set(alone.items())


def test_the_first_model_answers_requests_that_name_none(server):
    assert complete(server).json()["model"] == "a"


def test_a_client_that_goes_away_mid_stream_frees_its_place(server):
    events = stream(server, model="b", max_tokens=400)
    next(events)
    events.close()
    for _ in range(200):
        if metric(server, "quire:num_requests_running", "b") == 0 and host_is_idle(server):
            return
    raise AssertionError("the request still runs")


def host_is_idle(server):
    """A later request has been answered, so whatever the earlier one left to do was seen by the host."""
    return complete(server, model="b", max_tokens=1).status_code == 200


def test_a_host_killed_mid_stream_ends_the_stream_with_an_error_and_serves_again(server):
    before = complete(server, model="a").json()["choices"][0]["text"]
    events = stream(server, model="a", max_tokens=450)
    next(events)
    os.kill(server.engine_pid(), signal.SIGKILL)
    *_, last, done = events
    assert last["error"]["code"] == 503
    assert done == "[DONE]"
    server.wait_ready()
    assert complete(server, model="a").json()["choices"][0]["text"] == before


@pytest.mark.usefixtures("fresh_processes")
def test_sigterm_under_load_finishes_what_was_accepted(folders):
    with serving(f"a={folders / 'a'}", "--dtype", "float32", "--num-pages", "400") as server:
        begun, results = threading.Barrier(5), []

        def ask():
            events = stream(server, max_tokens=200)
            next(events)
            begun.wait(60)
            results.append(list(events))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        assert server.stop(signal.SIGTERM) == 0
        for thread in threads:
            thread.join()
        assert len(results) == 4
        for events in results:
            assert events[-1] == "[DONE]"
            assert events[-2]["choices"][0]["finish_reason"] == "length"


def test_without_plugins_the_server_starts_and_says_why_it_serves_nothing():
    with serving("--plugins", "") as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"] == []
        reply = complete(server)
        assert reply.status_code == 404
        assert "No model is served" in reply.json()["error"]["message"]
        assert "no model is served" in server.output()


def fails_to_start(*words):
    with serving(*words, ready=False) as server:
        status = server.process.wait(120)
        return status, server.output()


@pytest.mark.usefixtures("fresh_processes")
def test_an_unknown_plugin_stops_the_start_with_the_list_of_installed_ones():
    status, output = fails_to_start("--plugins", "lama")
    assert status == 2
    assert "Did you mean 'llama'?" in output
    assert "Traceback" not in output


def test_a_model_that_is_not_there_stops_the_start():
    status, output = fails_to_start("./no/such/folder")
    assert status == 2
    assert "./no/such/folder" in output
    assert "Traceback" not in output


def test_a_truncated_checkpoint_stops_the_start_by_file_name(folders, tmp_path):
    broken = tiny_llama(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    status, output = fails_to_start(broken)
    assert status == 2
    assert "model.safetensors" in output
    assert "Traceback" not in output


def test_a_port_that_is_taken_stops_the_start(server):
    process = subprocess.run(command("serve", "--port", server.port), capture_output=True, text=True, timeout=120)
    assert process.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{server.port}" in process.stderr
