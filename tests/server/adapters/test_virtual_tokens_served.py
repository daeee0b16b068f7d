"""Virtual tokens on the real server: clients see nothing of them but other answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_client import AdapterClient
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


def test_a_broken_folder_is_a_400_that_says_why(world: World, server: Server, tmp_path: Path) -> None:
    asks = AdapterClient(server.url)
    for file in world.paths["projected"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no tensors")
    reply = asks.load("broken", tmp_path, base_model_name="m")
    assert reply.status_code == 400
    assert "adapter_model.safetensors cannot be used" in reply.text
    asks.http.close()
