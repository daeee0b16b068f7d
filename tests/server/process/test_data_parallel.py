"""`platform serve --data-parallel-size 2` with real engines: answers, prefixes, adapters, metrics, and faults."""

import json
import os
import signal
import threading
from pathlib import Path

import httpx
import pytest
from letter_adapters import Voices
from serving import serving

from quire_testing.tiny import tiny_llama

pytestmark = pytest.mark.slow

FLAGS = (
    "--enable-prompt-tokens-details",
    "--dtype",
    "float32",
    "--num-pages",
    "400",
    "--max-model-len",
    "2048",
    "--enable-lora",
    "--max-loras",
    "8",
)
AGAIN = "the engine process takes requests again"
"""In the log, after a restart."""

LETTERS = "ABCDEFGH"
"""What the adapters say."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "m", seed=1, max_position_embeddings=2048)
    voices = Voices(root / "m")
    for letter in LETTERS:
        voices.adapter(root / letter, letter)
    return root


@pytest.fixture(scope="module")
def server(folders):
    with serving(f"m={folders / 'm'}", *FLAGS, "-dp", "2") as server:
        yield server


@pytest.fixture(scope="module")
def alone(folders):
    with serving(f"m={folders / 'm'}", *FLAGS) as server:
        yield server


def complete(server, **body):
    body = {"model": "m", "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 8, "ignore_eos": True, **body}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)


def replies(server, bodies):
    """The replies to requests that are sent at once, in their order."""
    found = [None] * len(bodies)

    def ask(number, body):
        reply = complete(server, **body)
        assert reply.status_code == 200, reply.text
        found[number] = reply.json()

    threads = [threading.Thread(target=ask, args=item) for item in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def at_once(server, bodies):
    """The answers."""
    return [reply["choices"][0]["text"] for reply in replies(server, bodies)]


def metric(server, name, **labels):
    """The values of a metric by engine."""
    found = {}
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith(f"quire:{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            found[line.partition('engine="')[2][0]] = float(line.rsplit(" ", 1)[1])
    return found


def engines(server):
    """The engine processes of both replicas, the oldest first: the youngest is kept for a restart."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            is_child, started = int(fields[1]) == server.process.pid, int(fields[19])
            if is_child and "quire.engine_process" in Path(f"/proc/{entry}/cmdline").read_text():
                found.append((started, int(entry)))
        except OSError:  # it has ended meanwhile
            continue
    return [pid for _, pid in sorted(found)[:2]]


def prefixes(own):
    """Requests with 8 prefixes of 768 tokens."""
    return [{"prompt": [10 + prefix] * 768 + [100 + own] * 32, "max_tokens": 4} for prefix in range(8)]


def test_prefixes_are_found_as_often_as_with_one_engine_and_answers_are_the_same(server, alone):
    rates, texts = [], []
    for one in (server, alone):
        found = [reply for own in range(4) for reply in replies(one, prefixes(own))]
        texts.append([reply["choices"][0]["text"] for reply in found])
        cached = sum(reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in found)
        rates.append(cached / sum(reply["usage"]["prompt_tokens"] for reply in found))
    assert texts[0] == texts[1]
    assert rates[0] >= 0.95 * rates[1] > 0.5


def load(server, name, folder, **more):
    body = {"lora_name": name, "lora_path": str(folder), **more}
    reply = httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, timeout=60)
    assert reply.status_code == 200, reply.text


def test_adapters_stay_on_one_replica_each(server, folders):
    for letter in LETTERS:
        load(server, letter, folders / letter)
    for i in range(4):
        answers = at_once(server, [{"model": letter, "prompt": [20 + i, 3]} for letter in LETTERS])
        assert answers == [letter * 8 for letter in LETTERS]
    while metric(server, "adapters", tier="device") != {"0": 4, "1": 4}:  # statistics are read once a second
        assert max(metric(server, "adapters", tier="device").values()) <= 4
    assert metric(server, "adapters", tier="disk") == {"0": 4, "1": 4}


def test_a_reload_is_used_by_every_replica_and_an_unload_ends_it_everywhere(server, folders):
    bodies = [{"model": "same", "prompt": [i, 9] * 400} for i in range(8)]
    for letter in "ABC":
        load(server, "same", folders / letter, load_inplace=True)
        assert at_once(server, bodies) == [letter * 8] * 8
    assert httpx.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": "same"}).status_code == 200
    assert {complete(server, **body).status_code for body in bodies} == {404}


def stream(server, results, begun):
    """A long stream; its last event or the error."""
    body = {"model": "m", "prompt": [3], "temperature": 0, "max_tokens": 600, "ignore_eos": True, "stream": True}
    last = None
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                if last is None:
                    begun.release()
                last = json.loads(line[6:])
    results.append("error" if "error" in last else last["choices"][0]["finish_reason"])


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_one_replica_that_dies_or_hangs_takes_only_its_own_requests_with_it(server, sign):
    before, restarts = engines(server), server.output().count(AGAIN)
    results, begun = [], threading.Semaphore(0)
    threads = [threading.Thread(target=stream, args=(server, results, begun)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    os.kill(before[0], sign)
    assert httpx.get(f"{server.url}/health").status_code == 200
    for thread in threads:
        thread.join()
    assert sorted(results) in (["error", "error", "length", "length"], ["length"] * 4)
    while server.output().count(AGAIN) == restarts:
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert len(engines(server)) == 2
    assert before[0] not in engines(server)
    assert before[1] in engines(server)
    assert len(set(at_once(server, [{"prompt": [8, 9]}] * 8))) == 1


@pytest.mark.usefixtures("fresh_processes")
def test_sigterm_drains_all_replicas(folders):
    with serving(f"m={folders / 'm'}", *FLAGS, "--data-parallel-size", "2") as server:
        results, begun = [], threading.Semaphore(0)
        threads = [threading.Thread(target=stream, args=(server, results, begun)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in threads:
            begun.acquire()
        assert server.stop(signal.SIGTERM) == 0
        for thread in threads:
            thread.join()
        assert results == ["length"] * 4
        assert not engines(server)
