"""Models that are loaded and unloaded on a real server, while others answer."""

import json
import shutil
import threading

import httpx
import pytest
from lora_rig import Base
from serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.process]

FLAGS = ("--enable-lora", "--dtype", "float32", "--num-pages", "200", "--max-model-len", "512", "--device", "cpu")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return Base(root / "one", "LlamaForCausalLM"), Base(root / "two", "Qwen2ForCausalLM")


@pytest.fixture(scope="module")
def server(bases):
    with serving(f"one={bases[0].folder}", *FLAGS) as server:
        yield server


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client
        for card in client.get("/v1/models").json()["data"]:
            if card["parent"] is None and card["id"] != "one":
                client.post("/v1/unload_model", json={"name": card["id"], "force": True})


def load(client, name, folder, **more):
    return client.post("/v1/load_model", json={"name": name, "model": str(folder), **more})


def unload(client, name, **more):
    return client.post("/v1/unload_model", json={"name": name, **more})


def complete(client, model, count=16, **more):
    body = {"model": model, "prompt": "To be or not to be", "max_tokens": count, "temperature": 0, "ignore_eos": True}
    return client.post("/v1/completions", json={**body, **more})


def text(client, model):
    return complete(client, model).json()["choices"][0]["text"]


def names(client):
    return [card["id"] for card in client.get("/v1/models").json()["data"]]


class Stream:
    """A stream in a thread. pieces: its events so far; error: the one that ended it."""

    def __init__(self, server, model, count=400):
        self.pieces, self.error, self._begun = [], None, threading.Event()
        self._ask = server.url, model, count
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self._begun.wait(60)

    def _run(self):
        url, model, count = self._ask
        body = {"model": model, "prompt": "x", "max_tokens": count, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    self.error = event.get("error")
                    self.pieces.append(event)
                    self._begun.set()

    def ended(self):
        self.thread.join(60)
        return self.pieces[-1]


def test_a_model_loaded_beside_a_stream_answers_as_one_from_the_start_and_comes_back_with_a_new_engine(
    server, client, bases
):
    one, two = bases
    adapter = two.adapter("late-adapter", r=4, target_modules=["q_proj", "down_proj"])
    stream = Stream(server, "one")
    answer = load(client, "late", two.folder, settings={"max-num-seqs": 4})
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"]["weights"] > 0
    assert load(client, "again", one.folder).status_code == 200
    assert stream.ended()["choices"][0]["finish_reason"] == "length"
    assert names(client) == ["one", "late", "again"]
    assert text(client, "again") == text(client, "one") != text(client, "late")
    body = {"lora_name": "style", "lora_path": str(adapter), "base_model_name": "late"}
    assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
    before = {name: text(client, name) for name in ("one", "late", "style", "again")}
    assert before["style"] != before["late"]

    server.kill_engine()
    assert names(client) == ["one", "late", "again", "style"]
    assert {name: text(client, name) for name in before} == before
    assert client.get("/v1/models/late").json()["adapters"] == ["style"]

    assert unload(client, "late").status_code == 200
    assert names(client) == ["one", "again"]
    for name in ("late", "style"):
        assert complete(client, name).status_code == 404
    assert client.get("/v1/adapters").json()["data"] == []
    assert text(client, "again") == before["again"]
    output = server.output()
    for line in ("late is loaded after", "the model late is served", "late is unloaded"):
        assert line in output


def test_an_unload_waits_for_streams_and_refuses_new_requests(server, client, bases):
    load(client, "late", bases[1].folder)
    stream = Stream(server, "late", 500)
    done = []
    leaving = threading.Thread(target=lambda: done.append(unload(client, "late")))
    with httpx.Client(base_url=server.url, timeout=120) as client:
        leaving.start()
        while (answer := complete(client, "late", 1)).status_code == 200:
            pass
        if answer.status_code == 503:  # else the stream has ended already
            assert "is being unloaded and takes no more requests" in answer.json()["error"]["message"]
        assert stream.ended()["choices"][0]["finish_reason"] == "length"
        leaving.join(60)
        assert done[0].status_code == 200
        assert complete(client, "late").status_code == 404
        assert 'model_name="late"' not in client.get("/metrics").text
        assert 'model_name="one"' in client.get("/metrics").text


def test_force_ends_a_stream_with_an_error_and_leaves_the_others(server, client, bases):
    load(client, "late", bases[1].folder)
    assert (
        'request_success_total{engine="0",finished_reason="stop",model_name="late"} 0.0' in client.get("/metrics").text
    )
    stream, other = Stream(server, "late", 500), Stream(server, "one", 300)
    assert unload(client, "late", force=True).status_code == 200
    assert "was unloaded" in stream.ended()["error"]["message"] if stream.error else stream.ended()
    assert other.ended()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (lambda folder: None, {"num_pages": 10**9}, "of memory (weights"),
        (lambda folder: None, {"max_model_len": 10**6}, "--max-model-len may be at most"),
        (lambda folder: None, {"scheduling_policy": "none"}, "none"),
        (lambda folder: (folder / "config.json").write_text("{"), {}, "config.json"),
        (lambda folder: (folder / "config.json").unlink(), {}, "config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 100), {}, "model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), {}, "tokenizer"),
    ],
)
def test_what_cannot_be_loaded_is_an_error_of_the_request_and_the_name_stays_free(
    server, client, bases, tmp_path, change, settings, words
):
    folder = shutil.copytree(bases[1].folder, tmp_path / "copy")
    change(folder)
    answer = load(client, "late", folder, settings=settings)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
    assert names(client) == ["one"]
    assert load(client, "late", bases[1].folder).status_code == 200
    assert text(client, "one")
