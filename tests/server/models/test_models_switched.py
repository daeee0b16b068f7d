"""Models that change on a real server while requests run: a switch of an alias, sleep, settings read again."""

import asyncio
import json
import signal
from collections import Counter

import httpx
import pytest
from lora_rig import Base
from one_token_model import one_token_llama
from serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.process]

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--device", "cpu", "--disable-access-log")
MIB = 1 << 20
SAID = {"blue": "B", "green": "G"}
NUM_BEFORE = NUM_AFTER = 100
"""Requests before and after the switch; those in between run while the new model is loaded."""
WEIGHTS = {"hidden_size": 256, "intermediate_size": 8192, "num_hidden_layers": 4}
"""Of 100 MiB in float32, so that memory shows whether a model is there."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: one_token_llama(root / name, ord(said), **WEIGHTS) for name, said in SAID.items()}


class Traffic:
    """Requests for an alias. answers: (number, model, text) of each, in order of their ends."""

    def __init__(self, client):
        self.client, self.begun, self.answers = client, 0, []
        self.switched_at = None  # the number of the first request that began after the switch

    async def run(self):
        while self.switched_at is None or self.begun < self.switched_at + NUM_AFTER:
            number = self.begun
            self.begun += 1
            self.answers.append((number, *await (self.stream if number % 2 else self.whole)()))

    async def whole(self):
        answer = await self.client.post("/v1/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "chat"
        return answer.headers["x-quire-model"], answer.json()["choices"][0]["text"]

    async def stream(self):
        async with self.client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
            assert answer.status_code == 200
            events = [json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: {")]
        assert not [event for event in events if "error" in event]
        return answer.headers["x-quire-model"], "".join(event["choices"][0]["text"] for event in events)


BODY = {"model": "chat", "prompt": "?", "max_tokens": 3, "temperature": 0}


async def test_an_alias_is_switched_under_load_and_the_model_before_is_unloaded(folders):
    """Blue-green: every request is answered, each by one model, and the memory of the old model is free."""
    with serving(f"blue={folders['blue']}", *FLAGS, "--kv-cache-memory-bytes", "8M") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            await client.post("/v1/model_aliases", json={"alias": "chat", "model": "blue"})
            traffic = Traffic(client)
            running = [asyncio.create_task(traffic.run()) for _ in range(24)]
            while len(traffic.answers) < NUM_BEFORE:
                await asyncio.sleep(0.01)
            body = {"name": "green", "model": str(folders["green"])}
            assert (await client.post("/v1/load_model", json=body)).status_code == 200
            assert (await client.post("/v1/completions", json={**BODY, "model": "green"})).status_code == 200
            both = server.host_bytes()
            switch = await client.post("/v1/model_aliases", json={"alias": "chat", "model": "green"})
            traffic.switched_at = traffic.begun
            assert switch.json()["models"][0]["state"] == "ready"
            assert (await client.post("/v1/unload_model", json={"name": "blue"})).status_code == 200
            await asyncio.gather(*running)
            after = server.host_bytes()
            listed = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
        assert len(traffic.answers) == traffic.begun
        for number, model, text in traffic.answers:
            assert text == 3 * SAID[model], number
            assert number < traffic.switched_at or model == "green"
        counts = Counter(model for _, model, _ in traffic.answers)
        assert set(counts) == {"blue", "green"}, counts
        assert listed == ["green", "chat"]
        assert both - after > 60 * MIB, (both // MIB, after // MIB)


async def test_a_model_sleeps_and_wakes_on_a_real_engine(tmp_path):
    base = Base(tmp_path / "one", "LlamaForCausalLM")
    adapter = base.adapter("style", r=4, target_modules=["q_proj", "down_proj"])
    flags = ("--enable-lora", "--enable-prompt-tokens-details", "--kv-cache-memory-bytes", "128M")
    with (
        serving(f"one={base.folder}", *FLAGS, *flags) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        body = {"lora_name": "style", "lora_path": str(adapter), "base_model_name": "one"}
        assert client.post("/v1/load_lora_adapter", json=body).status_code == 200

        def answers():
            found = {}
            for model in ("one", "style"):
                ask = {"model": model, "prompt": "To be or not to be, " * 4, "max_tokens": 8, "temperature": 0}
                answer = client.post("/v1/completions", json=ask).json()
                found[model] = (answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"])
            return found

        first, again = answers(), answers()
        assert {name: text for name, (text, _) in first.items()} == {name: text for name, (text, _) in again.items()}
        assert first["one"][0] != first["style"][0]
        assert again["one"][1]["cached_tokens"] > 0
        for level in (1, 2):
            assert client.post("/sleep", params={"level": level}).json()["status"] == "sleeping"
            details = client.get("/v1/models/one").json()
            assert (details["state"], details["bytes"]["kv_cache"]) == ("sleeping", 0)
            assert (details["bytes"]["weights"] > 0) == (level == 1)
            answer = client.post("/v1/completions", json={"model": "style", "prompt": "x"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert client.post("/wake_up").json()["status"] == "awake"
            assert answers() == first, level  # what the prefix cache had is gone
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["one", "style"]


def test_the_file_of_settings_is_read_again(folders, tmp_path):
    file = tmp_path / "serve.yaml"

    def write(text):
        file.write_text(f"kv-cache-memory-bytes: 8M\n{text}")

    def models(**named):
        return "models:\n" + "".join(f"  - name: {name}\n    model: {folder}\n" for name, folder in named.items())

    write(models(blue=folders["blue"]) + "model-aliases: {chat: blue}\n")
    with serving("--config", file, *FLAGS) as server, httpx.Client(base_url=server.url, timeout=120) as client:

        def said():
            return client.post("/v1/completions", json={**BODY, "max_tokens": 1}).json()["choices"][0]["text"]

        assert said() == "B"
        write("models: [}")
        answer = client.post("/v1/reload")
        assert answer.status_code == 400
        assert f"The settings before stay in force: {file}, line 2: invalid YAML" in answer.json()["error"]["message"]
        write(models(blue=folders["blue"]) + "model-aliases: {chat: [{model: blue, weight: 0}]}\n")
        assert "finite number above 0" in client.post("/v1/reload").json()["error"]["message"]
        assert said() == "B"
        assert client.post("/v1/reload").status_code == 400

        write(models(green=folders["green"]) + "model-aliases: {chat: green}\nmax-body-bytes: 1M\n")
        done = client.post("/v1/reload").json()
        assert done["failed"] == {}
        assert (done["loaded"], done["unloading"], done["aliases"]) == (["green"], ["blue"], ["chat"])
        assert done["needs_restart"] == ["max-body-bytes"]
        assert said() == "G"
        while "blue" in (names := [card["id"] for card in client.get("/v1/models").json()["data"]]):
            pass
        assert names == ["green", "chat"]

        changed = models(green=folders["green"], blue=folders["blue"], gone=tmp_path / "nowhere")
        write(changed + "    max-num-seqs: 3\nmodel-aliases: {chat: blue, dark: gone}\n")
        server.process.send_signal(signal.SIGHUP)
        while said() != "B":
            pass
        while "dark is not in force" not in (output := server.output()):
            pass
        assert "gone is not in force" in output
        assert "the settings were read again from" in output
        assert client.get("/v1/models/gone").json()["state"] == "failed"
