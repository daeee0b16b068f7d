"""What holds for the fields of every body that clients send: null is absent, and a boolean is no number."""

import contextlib
from functools import cache

import pytest
from fake_client import PretendClient, classifier, embedder, http, info, pretend_app
from pydantic import ValidationError

from quire.server.request_bodies import BODIES
from quire.server.schemas.requests import TokenizeRequest
from quire.types.request_model import RequestModel


def descendants(kind):
    return [one for sub in kind.__subclasses__() for one in (sub, *descendants(sub))]


MODELS = [model for model in dict.fromkeys(descendants(RequestModel)) if model.__module__.startswith("quire.")]
OPTIONAL = [
    (model, field.alias or name)
    for model in MODELS
    for name, field in model.model_fields.items()
    if not field.is_required() and (model, name) != (TokenizeRequest, "prompt")  # it needs one of two
]
NAMES = [f"{model.__name__}.{name}" for model, name in OPTIONAL]


SAMPLES = {
    "prompt": "a",
    "messages": [{"role": "user"}],
    "tokens": [1],
    "query": "q",
    "documents": ["a"],
    "name": "n",
    "lora_name": "n",
    "lora_path": "p",
    "role": "user",
    "text": "a",
    "type": "text",
    "function": {"name": "f"},
    "content": [{"type": "text", "text": "a"}],
    "model": "a",
    "alias": "a",
}


def made(model, more=()):
    """An instance with its required fields and these."""
    required = {name: SAMPLES[name] for name, field in model.model_fields.items() if field.is_required()}
    if model is TokenizeRequest:
        required["prompt"] = "a"
    return model.model_validate({**required, **dict(more)})


def test_every_body_derives_from_the_base_class():
    assert set(BODIES) <= set(MODELS)


@cache
def schema(model):
    return model.model_json_schema()


@pytest.mark.parametrize(("model", "name"), OPTIONAL, ids=NAMES)
def test_null_in_an_optional_field_is_its_absence(model, name):
    assert made(model, {name: None}) == made(model)
    allowed = schema(model)["properties"][name]
    assert allowed.get("default", ...) is None or {"type": "null"} in allowed["anyOf"]


def numbers(found):
    if isinstance(found, dict | list | tuple):
        return [one for part in (found.values() if isinstance(found, dict) else found) for one in numbers(part)]
    return [found] if type(found) in (int, float) else []


@pytest.mark.parametrize(("model", "name"), OPTIONAL, ids=NAMES)
def test_a_boolean_is_taken_for_a_number_nowhere(model, name):
    for value in (True, [False], [[False]], {"1": True}):
        with contextlib.suppress(ValidationError):
            taken = getattr(made(model, {name: value}), {"json": "json_", "schema": "json_schema"}.get(name, name))
            assert not numbers(taken)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "q", "documents": ["a"], "top_n": False}, "body.top_n"),
        ("/v1/embeddings", {"model": "embedder", "input": [[False]]}, "body.input"),
        ("/generate", {"model": "tiny", "input_ids": [False]}, "body.input_ids.0"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "logprobs": True}, "body.logprobs"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "temperature": True}, "body.temperature"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "logit_bias": {"5": True}}, "body.logit_bias.5"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "stop_token_ids": [True]}, "body.stop_token_ids.0"),
        ("/detokenize", {"model": "tiny", "tokens": [True]}, "body.tokens.0"),
    ],
)
async def test_a_boolean_for_a_number_is_refused_with_its_place(tmp_path, path, body, param):
    app = pretend_app(tmp_path, PretendClient(info(), embedder(), classifier("a", name="ranker")))
    async with http(app) as client:
        answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/rerank", {"query": "q", "documents": ["a"], "max_tokens_per_doc": None, "top_n": None}),
        ("/v1/embeddings", {"input": "a", "encoding_format": None, "embed_dtype": None, "priority": None}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2, "echo": None, "min_tokens": None}),
        ("/v2/embed", {"texts": ["a"], "truncate": None}),
    ],
)
async def test_clients_that_send_null_for_what_they_leave_open_are_answered(tmp_path, path, body):
    app = pretend_app(tmp_path, PretendClient(info(), embedder(), classifier("a", name="ranker")))
    async with http(app) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
