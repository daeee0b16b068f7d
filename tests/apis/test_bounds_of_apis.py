"""Fields whose size alone is refused, in the bodies of all APIs that plugins add."""

import pytest
from pydantic import ValidationError

import quire_apis.anthropic.schemas as anthropic
import quire_apis.cohere.schemas as cohere
import quire_apis.decisions.schemas as decisions
import quire_apis.moderations.schemas as moderations
import quire_apis.ollama.schemas as ollama
import quire_apis.responses.schemas as responses
import quire_batches.routes_batches as batches
from quire.plugin import RequestModel

MODULES = (anthropic, cohere, decisions, moderations, ollama, responses, batches)
MODELS = [
    model
    for module in MODULES
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, RequestModel) and model.__module__ == module.__name__
]
TEXTS = {
    *("text", "content", "input", "instructions", "thinking", "prompt", "system", "suffix", "template"),
    *(
        "arguments",
        "tool_plan",
        "description",
        "images",
        "videos",
        "audios",
        "stop_sequences",
        "documents",
        "keep_alive",
    ),
}
"""Fields that hold what a tokenizer reads, which has bounds of its own, media, or parts of those."""


def unbounded_texts(schema):
    """Whether a string without a bound is among what a schema allows."""
    if schema.get("type") == "string":
        return not {"maxLength", "enum", "const", "pattern"} & schema.keys()
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return any(map(unbounded_texts, parts))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_name_and_id_has_a_bound(model):
    fields = model.model_json_schema()["properties"]
    assert {name for name, schema in fields.items() if unbounded_texts(schema)} <= TEXTS


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (cohere.CohereChatRequest, {"messages": [{"role": "user"}], "documents": ["x"] * 5000}),
        (cohere.CohereChatRequest, {"messages": [{"role": "user"}], "documents": [1] * 4000}),
        (cohere.CohereTokenizeRequest, {"text": "x" * 70_000}),
        (cohere.CohereDetokenizeRequest, {"tokens": [1] * 70_000}),
        (ollama.OllamaGenerateRequest, {"model": "m", "images": ["x"] * 2000}),
        (ollama.OllamaChatRequest, {"model": "m", "messages": [7] * 4000}),
        (anthropic.CountTokensRequest, {"model": "m", "messages": [7] * 4000}),
        (decisions.DecisionRequest, {"state": "s", "questions": {str(n): {"type": "noul"} for n in range(4000)}}),
        (decisions.DecisionRequest, {"state": "s", "questions": {"a": {"type": "noul"}}, "images": ["x"] * 2000}),
        (responses.ResponseRequest, {"metadata": {str(number): number for number in range(4000)}}),
        (responses.ResponseRequest, {"previous_response_id": "x" * 513}),
        (batches.BatchRequest, {"input_file_id": "x" * 513, "endpoint": "/v1/embeddings", "completion_window": "24h"}),
    ],
)
def test_a_wrong_item_or_a_bound_is_one_error_or_one_for_each_choice(model, body):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 2
