"""Requests as clients of Jina and of Cohere's first version send them."""

import pytest
from fake_client import PretendClient, classifier, embedder, http, pretend_app


@pytest.fixture
async def client(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(embedder(), classifier("a", name="ranker")))) as client:
        yield client


async def rerank(client, path="/v1/rerank", **body):
    answer = await client.post(path, json={"model": "ranker", "query": "q", "documents": ["a", "bc"], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


async def test_documents_are_left_out_if_the_client_does_not_want_them(client):
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        bare = await rerank(client, path, return_documents=False)
        assert all(result.keys() == {"index", "relevance_score"} for result in bare)
        assert all("document" in result for result in await rerank(client, path, return_documents=None))


async def test_queries_and_documents_may_be_objects(client):
    documents = [{"text": "a", "title": "x"}, {"text": "bc"}]
    assert await rerank(client, query={"text": "q"}, documents=documents) == await rerank(client)


async def test_inputs_may_be_objects(client):
    plain, objects = ["ab", "c"], [{"text": "ab"}, {"text": "c"}]
    made = [
        await client.post("/v1/embeddings", json={"input": given}) for given in (plain, objects, ["ab", objects[1]])
    ]
    assert [answer.json()["data"] for answer in made] == [made[0].json()["data"]] * 3
    assert len(made[0].json()["data"]) == 2


@pytest.mark.parametrize(
    "given", [[{"image": "https://x"}], [{"text": "a", "image": "b"}], [{"text": 5}], [{}], {"a": 1}]
)
async def test_inputs_of_another_kind_are_refused(client, given):
    answer = await client.post("/v1/embeddings", json={"input": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body.input")
