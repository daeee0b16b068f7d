"""Virtual tokens on the real server: clients see nothing of them but other answers."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from adapter_client import AdapterClient, error_of, held_back
from serving import Server, serving
from virtual_tokens_rig import World

pytestmark = pytest.mark.slow

PROMPT = list(b"To be or not to be, that is the question")
KINDS = ("prompt", "projected", "lora")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), "LlamaForCausalLM", KINDS)


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    flags = ("--enable-lora", "--dtype", "float32", "--num-pages", "60", "--max-model-len", "128")
    with serving(f"m={world.folder}", *flags, "--enable-prompt-tokens-details") as made:
        yield made


def test_requests_with_adapters_loaded_at_run_time_are_answered_as_by_peft(world: World, server: Server) -> None:
    asks = AdapterClient(server.url)
    for kind, path in world.paths.items():
        assert asks.load(kind, path, base_model_name="m").status_code == 200
    assert {row["id"]: row["virtual_tokens"] for row in asks.rows()} == {"prompt": 6, "projected": 9, "lora": 0}
    for kind in (None, *KINDS):
        world.check_greedy(kind, PROMPT, asks.ids(kind or "m", PROMPT))
    again = asks.complete("projected", PROMPT, 4, echo=True, logprobs=1).json()
    assert again["usage"]["prompt_tokens"] == len(PROMPT)
    assert again["choices"][0]["text"].startswith(bytes(PROMPT).decode())
    logprobs = again["choices"][0]["logprobs"]["token_logprobs"]
    assert (len(logprobs), logprobs[0]) == (len(PROMPT) + 4, None)
    cached = asks.complete("projected", PROMPT, 4).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (9 + len(PROMPT) - 1) // 16 * 16 - 9

    server.kill_engine()
    for kind in KINDS:
        world.check_greedy(kind, PROMPT, asks.ids(kind, PROMPT))
    long = asks.complete("projected", [1] * 120, 1)
    assert long.status_code == 400
    assert "has 120 tokens, and its adapter puts 9 before it" in long.json()["error"]["message"]
    assert asks.unload("prompt").status_code == 200
    assert asks.complete("prompt", PROMPT).status_code == 404
    asks.http.close()


@pytest.fixture
def broken(world: World, tmp_path: Path) -> Path:
    """An adapter the weights of which cannot be read."""
    folder = shutil.copytree(world.paths["projected"], tmp_path / "broken")
    (folder / "adapter_model.safetensors").write_bytes(b"no tensors")
    return folder


def answer_of_a_first_load(server: Server, name: str, path: Path) -> httpx.Response:
    """The answer to a request that is sent before an adapter is read."""
    asks, other, sent = AdapterClient(server.url), AdapterClient(server.url), threading.Event()
    other.http.event_hooks["request"] = [lambda _: sent.set()]
    with held_back(server) as release, ThreadPoolExecutor(1) as pool:
        assert asks.load(name, path, base_model_name="m", wait=False).status_code == 200
        answer = pool.submit(other.complete, name, PROMPT, 12, return_token_ids=True)
        sent.wait()
        assert asks.ids("m", PROMPT) == asks.ids("m", PROMPT), "others are answered meanwhile"
        assert not answer.done()
        release.set()
        reply = answer.result()
    asks.http.close()
    other.http.close()
    return reply


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_waits_for_an_adapter_that_is_loaded_for_the_first_time(
    world: World, server: Server, kind: str
) -> None:
    reply = answer_of_a_first_load(server, f"first-{kind}", world.paths[kind])
    assert reply.status_code == 200, reply.text
    world.check_greedy(kind, PROMPT, reply.json()["choices"][0]["token_ids"])


def test_a_request_that_waits_for_a_load_that_fails_gets_the_reason(server: Server, broken: Path) -> None:
    status, _, message, _ = error_of(answer_of_a_first_load(server, "awaited", broken))
    assert status == 400
    assert message.startswith("The adapter `awaited` could not be loaded: adapter_model.safetensors cannot be used")


def test_a_broken_folder_is_a_400_that_says_why(server: Server, broken: Path) -> None:
    asks = AdapterClient(server.url)
    reply = asks.load("broken", broken, base_model_name="m")
    assert reply.status_code == 400
    assert "adapter_model.safetensors cannot be used" in reply.text
    asks.http.close()
