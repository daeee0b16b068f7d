"""`/v2/embed`: the shape of Cohere's API."""

import base64

import numpy as np
import pytest
from fake_client import PretendClient, embedder, http, numbers_of, pretend_app

from quire.params.pooling import PoolingResult
from quire.server.pooling.cohere import _vector
from quire.settings.server_config import ServerConfig


@pytest.fixture
def pretend():
    return PretendClient(embedder(embedding_size=16))


@pytest.fixture
async def client(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend, ServerConfig(max_pooling_inputs=3))) as client:
        yield client


async def embed(client, **body):
    answer = await client.post("/v2/embed", json={"model": "embedder", "input_type": "search_query", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_embeddings_come_in_every_type_that_was_asked_for(client, pretend):
    answer = await embed(client, texts=["ab", "cde"], embedding_types=["float", "base64", "binary", "ubinary"])
    made = answer["embeddings"]
    assert list(made) == ["float", "base64", "binary", "ubinary"]
    for i, request in enumerate(pretend.requests):
        numbers = numbers_of(pretend.infos[0], request)
        assert made["float"][i] == numbers.tolist()
        assert base64.b64decode(made["base64"][i]) == numbers.tobytes()
        assert np.array_equal(np.unpackbits(np.array(made["ubinary"][i], np.uint8)), numbers > 0)
        assert [byte + 128 for byte in made["binary"][i]] == made["ubinary"][i]


async def test_vectors_of_eight_bits_keep_their_direction_and_can_be_compared(client):
    types = ["float", "int8", "uint8"]
    made = (await embed(client, texts=["ab", "cde"], embedding_types=types))["embeddings"]
    numbers, signed, unsigned = (np.array(made[name], float) for name in types)
    assert np.array_equal(unsigned, signed + 128)
    assert np.abs(signed).max() <= 127
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    assert np.allclose(signed, 127 * numbers / lengths, atol=0.5)  # s is 1: they have 16 numbers


def test_a_long_vector_of_eight_bits_uses_its_range():
    numbers = np.random.default_rng(0).normal(size=1024).astype(np.float32)
    made = _vector(PoolingResult.from_array(numbers), "int8")
    assert 60 < max(map(abs, made)) <= 127
    assert np.dot(made, numbers) / np.linalg.norm(made) / np.linalg.norm(numbers) > 0.999
    outlier = np.zeros(1024, np.float32)
    outlier[0] = -5
    assert _vector(PoolingResult.from_array(outlier), "uint8") == [1] + [128] * 1023
    assert _vector(PoolingResult.from_array(0 * outlier), "int8") == [0] * 1024


async def test_an_answer_has_the_shape_of_coheres(client):
    answer = await embed(client, inputs=[{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    assert answer["id"].startswith("embd-")
    assert list(answer["embeddings"]) == ["float"]
    assert answer["texts"] == ["ab"]
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 2}}
    assert answer["response_type"] == "embeddings_by_type"


async def test_the_first_version_gives_the_same_in_its_own_shape(client):
    second = await embed(client, texts=["ab"])
    for types in (None, ["int8"]):
        body = {"model": "embedder", "texts": ["ab"], "embedding_types": types}
        first = (await client.post("/v1/embed", json=body)).json()
        expected = ("embeddings_by_type", dict) if types else ("embeddings_floats", list)
        assert (first["response_type"], type(first["embeddings"])) == expected
        assert first["meta"]["api_version"] == {"version": "1"}
        assert types or first["embeddings"] == second["embeddings"]["float"]


async def test_texts_are_cut_at_the_end_that_was_named(client, pretend):
    for more in ({"truncate": "END"}, {"truncate": "START"}, {}):
        await embed(client, texts=["abcd"], max_tokens=2, **more)
    await embed(client, texts=["a" * 200])
    assert [request.prompt.token_ids for request in pretend.requests] == [(97, 98), (99, 100), (97, 98), (97,) * 128]


async def test_fewer_dimensions_may_be_asked_for(client):
    assert len((await embed(client, texts=["a"], output_dimension=4))["embeddings"]["float"][0]) == 4


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "texts", "Exactly one"),
        ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts", "Exactly one"),
        ({"texts": [""]}, "texts", "must not be empty"),
        ({"texts": ["a"] * 4}, "texts", "at most 3 items"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "body.embedding_types.0", "ubinary"),
        ({"texts": ["a"], "output_dimension": 17}, "output_dimension", "from 1 to 16"),
        ({"texts": ["a"], "output_dimension": 0}, "output_dimension", "at least 1"),
        ({"texts": ["abc"], "max_tokens": 2, "truncate": "NONE"}, "texts", "the prompt has 3"),
        ({"images": ["data:x"]}, "images", "not supported"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_with_the_reason(client, pretend, body, param, message):
    answer = await client.post("/v2/embed", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert not pretend.requests
