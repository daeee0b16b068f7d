"""Fields whose size alone is refused, before anything looks at what they hold."""

import pytest
from fake_client import PretendClient, classifier, embedder, http, pretend_app

from quire.errors import BadRequest, ConfigError
from quire.hooks.adapter_resolver import check_name
from quire.server.schemas.adapters import LoadAdapterRequest
from quire.server.schemas.requests import CompletionRequest
from quire.server.service.adapters import MAX_MODEL_NAME
from quire.settings.server_config import ServerConfig

MANY = ["x"] * ((1 << 16) + 1)


@pytest.fixture
async def client(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(embedder(), classifier("s", name="cross")))) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": MANY}, "body.input"),
        ("/v2/embed", {"texts": MANY}, "body.texts"),
        ("/score", {"text_1": "a", "text_2": MANY}, "body.text_2"),
        ("/rerank", {"query": "a", "documents": MANY}, "body.documents"),
    ],
)
async def test_lists_of_more_texts_than_any_setting_allows_are_refused_by_their_schema(client, path, body, param):
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert "at most 65536" in error["message"]


async def test_a_very_long_name_of_a_model_is_not_looked_for(client):
    answer = await client.post("/v1/embeddings", json={"model": "x" * (MAX_MODEL_NAME + 1), "input": "a"})
    assert answer.status_code == 404
    assert len(answer.text) < 1000


@pytest.mark.parametrize("field", ["structured_outputs", "guided_choice"])
def test_a_choice_of_very_many_texts_is_refused(field):
    value = MANY if field == "guided_choice" else {"choice": MANY}
    with pytest.raises(ValueError, match="at most 16384 items"):
        CompletionRequest(model="m", prompt="a", **{field: value})


def test_a_long_name_of_an_adapter_is_looked_at_no_further_than_its_bound():
    class Measured(str):
        read = 0

        def __getitem__(self, key):
            part = super().__getitem__(key)
            Measured.read += len(part)
            return part

    with pytest.raises(BadRequest, match="from 1 to"):
        check_name(Measured("x" * 1_000_000))
    assert Measured.read < 10_000


async def test_a_path_of_an_adapter_has_a_bound(tmp_path):
    app = pretend_app(tmp_path, PretendClient(embedder()))
    adapters = app.state.service.adapters
    with pytest.raises(BadRequest, match="at most 4096 characters"):
        await adapters.load(LoadAdapterRequest(lora_name="a", lora_path="/" + "x" * MAX_MODEL_NAME))


def test_the_setting_has_the_same_bound():
    with pytest.raises(ConfigError, match="at most 65536"):
        ServerConfig(max_pooling_inputs=1 << 17)
