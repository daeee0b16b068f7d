"""Fields of other servers that would change the answer are refused by name, unless they ask for nothing."""

import pytest
from fake_client import PretendClient, embedder, http, info, pretend_app

from quire.server.schemas.unsupported import REPLACEMENTS, UNSUPPORTED_FIELDS


@pytest.fixture
async def client(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(info(), embedder()))) as client:
        yield client


async def ask(client, path="/v1/completions", **fields):
    given = {"prompt": "a"} if path != "/v1/embeddings" else {"model": "embedder", "input": "a"}
    return await client.post(path, json={**given, "max_tokens": 2, **fields})


@pytest.mark.parametrize("name", UNSUPPORTED_FIELDS)
async def test_a_field_that_would_change_the_answer_is_refused_by_name(client, name):
    answer = await ask(client, **{name: "odd"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert error["message"].startswith(f"`{name}` would change the answer")
    assert (f"use `{REPLACEMENTS[name]}`" in error["message"]) if name in REPLACEMENTS else True


async def test_values_that_ask_for_nothing_are_let_through(client):
    for i in range(max(map(len, UNSUPPORTED_FIELDS.values()))):
        nothing = {name: values[i] if i < len(values) else None for name, values in UNSUPPORTED_FIELDS.items()}
        assert (await ask(client, **nothing)).status_code == 200


async def test_fields_that_change_no_answer_are_ignored(client):
    harmless = {
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "user": "me",
    }
    more = {"safety_identifier": "x", "prompt_cache_key": "y", "cache_prompt": True, "rid": "1", "mirostat_tau": 5}
    assert (await ask(client, **harmless, **more)).status_code == 200


async def test_other_routes_refuse_them_too(client):
    assert (await ask(client, "/v1/embeddings", late_chunking=True)).status_code == 400
    assert (await ask(client, "/generate", sampling_params={"no_repeat_ngram_size": 3})).status_code == 400


async def test_the_native_route_takes_sglang_s_name_for_the_length(client):
    for fields in ({"max_new_tokens": 3}, {"sampling_params": {"max_new_tokens": 3}}):
        answer = await client.post("/generate", json={"model": "tiny", "text": "a", **fields})
        assert answer.json()["usage"]["completion_tokens"] == 3
