"""`/score` and `/rerank` with models that score pairs, embed texts, or embed their tokens."""

import numpy as np
import pytest
import torch
from fake_client import PretendClient, classifier, embedder, http, numbers_of, pretend_app

from quire.settings.server_config import ServerConfig

TOKENS = embedder("tokens", tasks=("token_embed",))
CROSS = classifier("score", name="cross", token_types=True)
SIDES = [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]


@pytest.fixture
def pretend():
    return PretendClient(embedder(), TOKENS, CROSS, classifier("no", "yes", name="two"))


@pytest.fixture
async def client(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend)) as client:
        yield client


async def ask(client, path="/score", **body):
    answer = await client.post(path, json={"model": "embedder", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores_of(answer):
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [item["score"] for item in answer["data"]]


def asked(pretend):
    """By text, what the pretended model made of it."""
    return {
        bytes(request.prompt.token_ids).decode(): torch.from_numpy(numbers_of(pretend.infos[0], request)).double()
        for request in pretend.requests
    }


@pytest.mark.parametrize("names", SIDES)
async def test_embeddings_are_compared_by_their_angle_whatever_the_fields_are_called(client, pretend, names):
    answer = await ask(client, **dict(zip(names, ("ab", ["cd", "ab", "xyz"]), strict=True)))
    made = asked(pretend)
    expected = [float(torch.cosine_similarity(made["ab"], made[text], dim=0)) for text in ("cd", "ab", "xyz")]
    assert scores_of(answer) == pytest.approx(expected, abs=1e-6)
    assert answer["id"].startswith("score-")
    assert answer["object"] == "list"
    assert answer["model"] == "embedder"
    assert answer["data"][0]["object"] == "score"


async def test_each_different_text_of_a_side_is_computed_once(client, pretend):
    answer = await ask(client, text_1="ab", text_2=["cd", "ef", "cd"])
    assert [bytes(request.prompt.token_ids) for request in pretend.requests] == [b"ab", b"cd", b"ef"]
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0}
    found = scores_of(answer)
    assert found[0] == found[2] != found[1]


async def test_as_many_texts_as_many_are_compared_one_by_one(client, pretend):
    both = scores_of(await ask(client, text_1=["ab", "cd"], text_2=["ef", "gh"]))
    one = scores_of(await ask(client, text_1="cd", text_2="gh"))
    assert both[1] == one[0]


async def test_embeddings_of_tokens_are_compared_by_their_best_products(client, pretend):
    answer = await ask(client, model="tokens", text_1="ab", text_2="cdef")
    query, document = (numbers_of(TOKENS, request) for request in pretend.requests)
    assert query.shape == (2, 8)
    assert scores_of(answer) == pytest.approx([float((query @ document.T).max(axis=1).sum())], abs=1e-5)


async def test_a_model_with_one_class_reads_both_texts_at_once(client, pretend):
    answer = await ask(client, model="cross", text_1="ab", text_2=["cd", "e"])
    assert [request.prompt.token_ids for request in pretend.requests] == [(97, 98, 99, 100), (97, 98, 101)]
    assert [request.prompt.token_types for request in pretend.requests] == [(0, 0, 1, 1), (0, 0, 1)]
    assert [request.params.task for request in pretend.requests] == ["classify"] * 2
    assert scores_of(answer) == [float(numbers_of(CROSS, request)[0]) for request in pretend.requests]
    raw = await ask(client, model="cross", text_1="ab", text_2=["cd", "e"], use_activation=False)
    logits = np.array(scores_of(raw))
    assert scores_of(answer) == pytest.approx((1 / (1 + np.exp(-logits))).tolist(), abs=1e-6)


async def test_queries_and_documents_are_cut_apart(client, pretend):
    more = {"max_tokens_per_query": 1, "max_tokens_per_doc": 2}
    await ask(client, model="cross", text_1="abc", text_2="defg", **more)
    await ask(client, text_1="abc", text_2="defg", **more)
    ids = [bytes(request.prompt.token_ids) for request in pretend.requests]
    assert ids == [b"ade", b"a", b"de"]
    pretend.requests.clear()
    await ask(client, model="cross", text_1="abc", text_2="defg", truncate_prompt_tokens=4)
    assert bytes(pretend.requests[0].prompt.token_ids) == b"abde"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_sorted_by_their_score(client, pretend, path):
    documents = ["cd", "ab", {"text": "xyz"}]
    answer = await ask(client, path, query="ab", documents=documents)
    scores = scores_of(await ask(client, text_1="ab", text_2=["cd", "ab", "xyz"]))
    assert [item["relevance_score"] for item in answer["results"]] == sorted(scores, reverse=True)
    assert answer["results"][0] == {
        "index": 1,
        "document": {"text": "ab", "multi_modal": None},
        "relevance_score": max(scores),
    }
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert set(answer) == {"id", "model", "usage", "results"}
    assert answer["id"].startswith("rerank-")


async def test_only_the_best_documents_are_given_where_the_request_says_how_many(client):
    body = {"query": "ab", "documents": ["cd", "ab", "xyz", "cd"]}
    whole = (await ask(client, "/rerank", **body))["results"]
    assert [item["index"] for item in whole if item["document"]["text"] == "cd"] == [0, 3]  # equal: in their order
    for count, expected in ((2, whole[:2]), (0, whole), (99, whole)):
        assert (await ask(client, "/rerank", **body, top_n=count))["results"] == expected


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/score", {}, "text_1", "Exactly one of these is needed"),
        ("/score", {"text_1": "a"}, "text_1", "got `text_1`"),
        ("/score", {"text_1": "a", "documents": "b"}, "text_1", "got `text_1`, `documents`"),
        ("/score", {"queries": "a", "documents": "b", "items": "c"}, "queries", "`items`"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, None, "2 texts cannot be compared with 1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, None, "2 texts cannot be compared with 3"),
        ("/score", {"text_1": "a", "text_2": []}, "body.text_2", "non-empty list of strings"),
        ("/score", {"text_1": 5, "text_2": "b"}, "body.text_1", "should be a string"),
        ("/score", {"text_1": "a", "text_2": ["b", ""], "model": "embedder"}, "text_2", "Item 1 of `text_2`"),
        ("/score", {"text_1": "a", "text_2": "b" * 129}, "text_2", "maximum context length"),
        ("/score", {"text_1": "a", "text_2": "b" * 128, "model": "cross"}, "text_2", "the prompt has 129"),
        ("/score", {"text_1": "a", "text_2": "b", "model": "two"}, "model", "it has 2"),
        ("/score", {"text_1": "a", "text_2": "b", "max_tokens_per_doc": -1}, "body.max_tokens_per_doc", "greater than"),
        ("/score", {"text_1": "a", "text_2": "b", "instruction": "Judge."}, "instruction", "not supported"),
        ("/score", {"text_1": ["a"] * 5, "text_2": ["b"] * 5}, "text_1", "at most 4 items"),
        ("/rerank", {"query": "a", "documents": ["b"] * 5}, "documents", "at most 4 items"),
        ("/rerank", {"query": "a", "documents": []}, "body.documents", "at least 1 item"),
        ("/rerank", {"query": ["a"], "documents": ["b"]}, "body.query", "valid string"),
        ("/rerank", {"documents": ["b"]}, "body.query", "required"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "body.top_n", "greater than"),
    ],
)
async def test_what_cannot_be_scored_is_refused_with_the_reason(tmp_path, pretend, path, body, param, message):
    async with http(pretend_app(tmp_path, pretend, ServerConfig(max_pooling_inputs=4))) as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert not pretend.requests
