"""`/pooling` and `/classify`, and what all routes of pooled prompts share: tasks, ends, figures, adapters, keys."""

import asyncio
import base64
import io
import json

import numpy as np
import pytest
from fake_client import PretendAdapters, PretendClient, classifier, embedder, http, info, numbers_of, pretend_app

from quire.commands.run_batch import process_lines
from quire.errors import EngineDied, Overloaded
from quire.settings.server_config import ServerConfig
from quire.types.adapter_info import AdapterInfo

POOLED = {
    "/v1/embeddings": {"input": ["ab", "cd"]},
    "/v2/embed": {"texts": ["ab", "cd"]},
    "/pooling": {"input": ["ab", "cd"]},
    "/classify": {"input": ["ab", "cd"], "model": "classifier"},
    "/score": {"text_1": "ab", "text_2": "cd"},
    "/rerank": {"query": "ab", "documents": ["cd"]},
}


@pytest.fixture
def pretend():
    return PretendClient(embedder(), classifier("no", "yes", "maybe"), info("writer"))


@pytest.fixture
def app(tmp_path, pretend):
    return pretend_app(tmp_path, pretend)


@pytest.fixture
async def client(app):
    async with http(app) as client:
        yield client


async def ask(client, path, **body):
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_classes_come_with_the_label_of_the_likeliest(client, pretend):
    answer = await ask(client, "/classify", input=["ab", "xyz"], model="classifier")
    assert answer["id"].startswith("classify-")
    for item, request in zip(answer["data"], pretend.requests, strict=True):
        scores = numbers_of(pretend.infos[1], request)
        assert item["probs"] == scores.tolist()
        assert item["label"] == ("no", "yes", "maybe")[int(scores.argmax())]
        assert item["num_classes"] == 3
    raw = await ask(client, "/classify", input="ab", model="classifier", use_activation=False)
    assert raw["data"][0]["probs"] != answer["data"][0]["probs"]


@pytest.mark.parametrize(
    ("model", "task", "shape"),
    [
        ("embedder", None, (2, 8)),
        ("embedder", "token_embed", (2, 8)),
        ("embedder", "embed", (8,)),
        ("classifier", None, (2, 3)),
        ("classifier", "token_classify", (2, 3)),
        ("classifier", "classify", (3,)),
    ],
)
async def test_what_a_pooler_gives_is_given_as_it_is(client, pretend, model, task, shape):
    answer = await ask(client, "/pooling", input="ab", model=model, task=task)
    (request,) = pretend.requests
    numbers = numbers_of(next(one for one in pretend.infos if one.name == model), request)
    assert numbers.shape == shape
    assert answer["id"].startswith("pooling-")
    assert answer["data"] == [{"index": 0, "object": "pooling", "data": numbers.tolist()}]
    coded = await ask(client, "/pooling", input="ab", model=model, task=task, encoding_format="base64")
    assert base64.b64decode(coded["data"][0]["data"]) == numbers.tobytes()


async def test_the_shapes_of_vectors_per_token_stand_in_the_header_of_bytes(client, pretend):
    answer = await client.post("/pooling", json={"input": ["ab", "cde"], "encoding_format": "bytes"})
    items = json.loads(answer.headers["metadata"])["data"]
    assert [item["shape"] for item in items] == [[2, 8], [3, 8]]
    for item, request in zip(items, pretend.requests, strict=True):
        numbers = np.frombuffer(answer.content[item["start"] : item["end"]], "<f4").reshape(item["shape"])
        assert np.array_equal(numbers, numbers_of(pretend.infos[0], request))


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (
            "/v1/embeddings",
            {"input": "a", "model": "writer"},
            "model",
            "`writer` cannot do `embed`. It can do: generate",
        ),
        ("/classify", {"input": "a", "model": "embedder"}, "model", "It can do: embed, token_embed"),
        ("/score", {"text_1": "a", "text_2": "b", "model": "writer"}, "model", "It can do: generate"),
        ("/pooling", {"input": "a", "task": "classify", "model": "embedder"}, "model", "It can do: embed, token_embed"),
        ("/pooling", {"input": "a", "model": "writer"}, "model", "It can do: generate"),
        ("/pooling", {"input": "a", "task": "plugin"}, "task", "one of embed, classify"),
        ("/pooling", {"input": "a", "dimensions": 4}, "dimensions", "/v1/embeddings only"),
        ("/v1/completions", {"prompt": "a", "model": "embedder"}, "model", "cannot do `generate`. It can do: embed"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "model": "embedder"},
            "model",
            "cannot do `generate`",
        ),
        ("/generate", {"prompt": "a", "model": "classifier"}, "model", "It can do: classify"),
    ],
)
async def test_a_task_that_a_model_cannot_do_is_refused_with_those_it_can(client, pretend, path, body, param, message):
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert not pretend.requests


@pytest.mark.parametrize("path", POOLED)
async def test_all_prompts_are_submitted_at_once_and_given_up_when_the_client_leaves(client, app, pretend, path):
    pretend.hold = asyncio.Event()
    call = asyncio.create_task(client.post(path, json=POOLED[path]))
    await pretend.progress.wait()
    count = len(pretend.requests)
    assert len(app.state.service.inflight) == 1
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert count == 2
    assert sorted(pretend.aborted) == sorted(request.id for request in pretend.requests)
    assert len(app.state.service.inflight) == 0


@pytest.mark.parametrize("path", POOLED)
async def test_a_shutdown_ends_what_is_being_pooled(client, app, pretend, path):
    pretend.hold = asyncio.Event()
    call = asyncio.create_task(client.post(path, json=POOLED[path]))
    await pretend.progress.wait()
    app.state.service.inflight.stop_all(EngineDied("The server is shutting down."))
    answer = await call
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "The server is shutting down.")
    assert sorted(pretend.aborted) == sorted(request.id for request in pretend.requests)


async def test_a_server_that_is_shutting_down_takes_no_prompts(client, app, pretend):
    app.state.service.inflight.close()
    assert (await client.post("/v1/embeddings", json={"input": "a"})).status_code == 503
    assert not pretend.requests


@pytest.mark.parametrize(
    ("error", "status", "rejected"),
    [(Overloaded("full"), 503, 1), (EngineDied("gone"), 503, 0), (ValueError("x"), 500, 0)],
)
async def test_an_error_of_one_prompt_ends_the_call_and_is_counted(client, app, pretend, error, status, rejected):
    pretend.failure = (0, error)
    answer = await client.post("/v1/embeddings", json={"input": ["a", "b", "c"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert len(app.state.service.inflight) == 0
    figures = app.state.service.metrics.text()[0].decode()
    assert (
        f'quire:admission_rejections_total{{engine="0",model_name="embedder",reason="queue_full"}} {rejected}.0'
        in figures
    )


async def test_ended_requests_are_counted_and_reported_to_plugins(tmp_path, pretend, monkeypatch):
    app = pretend_app(tmp_path, pretend)
    reported = []
    service = app.state.service
    monkeypatch.setattr(service.telemetry, "_observe", lambda batch: reported.extend(summary for summary, *_ in batch))
    service.telemetry.start()
    async with http(app) as client:
        await ask(client, "/v1/embeddings", input=["ab", "cde"])
    await service.telemetry.stop()
    assert [
        (one.finish_reason, one.num_prompt_tokens, one.num_generated_tokens, one.num_cached_tokens) for one in reported
    ] == [
        ("stop", 2, 0, 1),
        ("stop", 3, 0, 1),
    ]
    assert [(one.model, one.n, one.max_tokens, one.queue_s) for one in reported] == [("embedder", 1, 0, 0.25)] * 2


async def test_a_request_may_name_an_adapter(client, pretend):
    assert isinstance(pretend.adapters, PretendAdapters)
    pretend.adapters.infos["mine"] = AdapterInfo(name="mine", model="embedder", path="/nowhere", state="ready")
    for path in ("/v1/embeddings", "/pooling"):
        assert (await ask(client, path, input="a", model="mine"))["model"] == "mine"
    assert (await ask(client, "/score", text_1="a", text_2="b", model="mine"))["model"] == "mine"
    assert [[use.ref.name for use in request.adapters] for request in pretend.requests] == [["mine"]] * 4
    other = await client.post("/v1/embeddings", json={"input": "a", "model": "none"})
    assert other.status_code == 404


@pytest.mark.parametrize("path", [*POOLED, "/v1/score", "/v1/rerank", "/v2/rerank"])
async def test_a_key_is_needed_where_one_is_set(tmp_path, pretend, path):
    body = POOLED.get(path) or POOLED[path[3:]]
    async with http(pretend_app(tmp_path, pretend, ServerConfig(api_key=("k",)))) as client:
        assert (await client.post(path, json=body)).status_code == 401
        assert (await client.post(path, json=body, headers={"authorization": "Bearer k"})).status_code == 200


async def test_batch_files_may_ask_for_numbers(app):
    paths = [*POOLED, "/v1/score", "/v1/rerank", "/v2/rerank"]
    lines = [{"custom_id": path, "url": path, "body": POOLED.get(path) or POOLED[path[3:]]} for path in paths]
    lines.append({"custom_id": "bytes", "url": "/v1/embeddings", "body": {"input": "a", "encoding_format": "bytes"}})
    output = io.BytesIO()
    assert await process_lines(app, [json.dumps(line).encode() for line in lines], output, max_concurrency=4) == 1
    answers = {answer["custom_id"]: answer for answer in map(json.loads, output.getvalue().splitlines())}
    assert answers.pop("bytes")["error"]["param"] == "encoding_format"
    assert {path: answers[path]["response"]["status_code"] for path in paths} == dict.fromkeys(paths, 200)
    assert len(answers["/v1/embeddings"]["response"]["body"]["data"]) == 2
