"""A real server whose budget is too small for all its models: right answers, adapters that come back, memory."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml
from letter_adapters import Voices, let_say
from serving import serving

from quire.isolation.process_state import resident_bytes
from quire_testing.tiny import tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.process]

BUDGET = 1400 << 20
LETTERS = "ABCD"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for number, letter in enumerate(LETTERS):
        let_say(tiny_llama(root / letter, seed=number), letter)
    Voices(root / "B", louder=30).adapter(root / "style", "z")
    (root / "corrupt").mkdir()
    (root / "corrupt" / "config.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def server(root):
    """One model is pinned; each of the others reserves a quarter of the budget."""
    models = [
        {"name": name, "model": str(root / name), "load": "on-demand", "kv_cache_memory_bytes": BUDGET // 4}
        for name in (*LETTERS[1:], "corrupt")
    ]
    models.append({"name": "A", "model": str(root / "A"), "pinned": True, "num_pages": 64})
    style = {"name": "style", "path": str(root / "style"), "base_model_name": "B"}
    flags = {"memory-budget": BUDGET, "models": models, "enable-lora": True, "device": "cpu", "max-num-seqs": 8}
    file = root / "serve.yaml"
    file.write_text(yaml.safe_dump({**flags, "lora-modules": [json.dumps(style)]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forked_popen.PROGRAMS", {})  # forked ones have imported more, which counts
        with serving("--config", file) as server:
            yield server


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def text(client, name, count=4):
    body = {"model": name, "prompt": "x", "max_tokens": count, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, (name, answer.text)
    return answer.json()["choices"][0]["text"]


def states(client):
    return {card["id"]: card["state"] for card in client.get("/v1/models").json()["data"]}


def test_models_come_and_go_and_every_answer_is_right(server, client):
    assert states(client) == {
        "A": "ready",
        **dict.fromkeys("BCD", "unloaded"),
        "corrupt": "unloaded",
        "style": "unloaded",
    }
    says = {name: name for name in LETTERS} | {"style": "z"}
    for name in ("B", "style", "C", "D", "style"):
        assert text(client, name) == 4 * says[name]
        total = resident_bytes(server.process.pid) + resident_bytes(server.await_engine_pid())
        assert total <= BUDGET
    assert 0 < list(states(client).values()).count("unloaded") < 5
    asked = [name for name in says for _ in range(2)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda name: text(client, name), asked)) == [4 * says[name] for name in asked]
    output = server.output()
    assert "to make room for" in output
    assert "the model A was unloaded" not in output
    for _ in range(2):
        answer = client.post("/v1/completions", json={"model": "corrupt", "prompt": "x"})
        assert answer.status_code == 503
        assert "`corrupt` could not be loaded" in answer.json()["error"]["message"]
    assert output.count("loading corrupt from") <= 1


def test_what_was_loaded_on_demand_is_there_after_a_restart_of_the_engine_process(server, client):
    assert text(client, "style") == "zzzz"
    server.kill_engine()
    assert text(client, "style") == "zzzz"
    assert text(client, "C") == "CCCC"
