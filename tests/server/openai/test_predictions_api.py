"""Predicted outputs and the field `speculative` over HTTP, with the `openai` client and as raw bodies."""

import openai
import pytest
from fake_client import PretendClient, http, info, pretend_app
from scripted_server import Scripted, streamed, talking

from quire.settings.server_config import ServerConfig
from quire.types.predicted_output import PredictedOutput

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def found_in(text, prediction):
    output = PredictedOutput(prediction.encode())
    output.advance(text.encode())
    return output.num_found


def predicted(content):
    return {"type": "content", "content": content}


@pytest.mark.parametrize(
    ("content", "accepted", "rejected"),
    [
        ("Hello, world!", 13, 0),
        ("Hello, World!", 12, 1),
        ([{"type": "text", "text": "Hello"}, {"type": "text", "text": ", world!"}], 13, 0),
        ("Hello, world! And more.", 13, 10),
        ("0123", 0, 4),
        ("", 0, 0),
    ],
)
async def test_the_usage_counts_what_was_predicted_whole_and_streamed(tmp_path, content, accepted, rejected):
    pretend = Scripted("Hello, world!", per_step=4)
    async with talking(tmp_path, pretend) as client:
        whole = await client.chat.completions.create(**ASK, prediction=predicted(content))
        *_, usage = await streamed(client, **ASK, prediction=predicted(content))
        plain = await client.chat.completions.create(**ASK)
    details = whole.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (accepted, rejected)
    assert details.reasoning_tokens is None
    assert usage == whole.usage
    assert whole.usage.completion_tokens == plain.usage.completion_tokens
    assert plain.usage.completion_tokens_details is None
    text = content if isinstance(content, str) else "Hello, world!"
    params = pretend.requests[0].params
    assert (params.prediction_ids, params.prediction) == (tuple(text.encode()), None)
    assert pretend.requests[-1].params.prediction_ids == ()


async def test_all_choices_count_and_none_has_rejected_tokens_before_it_ends(tmp_path):
    async with talking(tmp_path, Scripted("Hello, world!")) as client:
        answer = await client.chat.completions.create(**ASK, n=3, temperature=1, prediction=predicted("Hello, You"))
        details = answer.usage.completion_tokens_details
        found = [found_in(choice.message.content, "Hello, You") for choice in answer.choices]
        assert max(found) == 8
        assert details.accepted_prediction_tokens == sum(found)
        assert details.rejected_prediction_tokens == 3 * 10 - sum(found)
        options = {"include_usage": True, "continuous_usage_stats": True}
        seen = [
            chunk.usage.completion_tokens_details
            async for chunk in await client.chat.completions.create(
                **ASK, stream=True, stream_options=options, prediction=predicted("Hello, You")
            )
            if chunk.usage
        ]
    counts = [(each.accepted_prediction_tokens, each.rejected_prediction_tokens) for each in seen]
    assert counts == sorted(counts)
    assert counts[0] in ((0, 0), (1, 0))
    assert counts[-1] == (8, 2)


@pytest.fixture
def pretend():
    return PretendClient()


@pytest.fixture
async def client(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend, config=ServerConfig(max_text_chars=1000))) as client:
        yield client


async def refused(client, path="/v1/chat/completions", **fields):
    body = {"messages": ASK["messages"]} if "chat" in path else {"prompt": "hi"}
    answer = await client.post(path, json={**body, "max_tokens": 4, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(
    "prediction",
    [
        "text",
        7,
        [],
        {},
        {"type": "content"},
        {"type": "other", "content": "a"},
        {"type": "content", "content": 3},
        {"type": "content", "content": None},
        {"type": "content", "content": {"text": "a"}},
        {"type": "content", "content": [3]},
        {"type": "content", "content": [{"text": "a"}]},
    ],
)
async def test_a_wrong_type_is_refused_with_one_sentence(client, pretend, prediction):
    error = await refused(client, prediction=prediction)
    assert error["param"] == "body.prediction"
    assert 'should be {"type": "content", "content": a string or a list of' in error["message"]
    assert not pretend.requests


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "`prediction` takes parts of type text only"),
        ([{"type": "text"}], "`prediction` takes parts of type text only"),
        ("a" * 1001, r"`prediction` has 1001 characters; at most 1000 are accepted (--max-text-chars)"),
        ([{"type": "text", "text": "a" * 600}] * 2, "`prediction` has 1200 characters"),
        ([{"type": "text", "text": ""}] * 20_000, "`prediction` may have at most 16384 parts"),
    ],
)
async def test_a_prediction_out_of_bounds_is_refused(client, pretend, content, said):
    error = await refused(client, prediction=predicted(content))
    assert error["param"] == "prediction"
    assert said in error["message"]
    assert not pretend.requests


async def test_tokens_beyond_the_context_are_dropped(tmp_path):
    pretend = PretendClient(info(max_model_len=40))
    async with http(pretend_app(tmp_path, pretend)) as client:
        body = {"messages": ASK["messages"], "max_tokens": 4, "prediction": predicted("Hell" + "o" * 5000)}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert pretend.requests[0].params.prediction_ids == tuple(("Hell" + "o" * 36).encode())
    details = {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 36}
    assert answer.json()["usage"]["completion_tokens_details"] == details


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
@pytest.mark.parametrize("speculative", [False, True, None])
async def test_a_request_may_turn_drafts_off(client, pretend, path, speculative):
    body = {"messages": ASK["messages"]} if "chat" in path else {"prompt": "hi"}
    answer = await client.post(path, json={**body, "max_tokens": 4, "speculative": speculative})
    assert answer.status_code == 200, answer.text
    assert pretend.requests[0].params.speculative is speculative


async def test_the_native_route_takes_it_among_the_sampling_parameters(client, pretend):
    body = {"prompt": "hi", "sampling_params": {"max_tokens": 4, "speculative": False}}
    assert (await client.post("/generate", json=body)).status_code == 200
    assert pretend.requests[0].params.speculative is False


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
async def test_a_request_may_name_an_adapter_of_the_drafter(client, pretend, path):
    body = {"messages": ASK["messages"]} if "chat" in path else {"prompt": "hi"}
    answer = await client.post(path, json={**body, "max_tokens": 4, "speculative_lora": "sql"})
    assert answer.status_code == 200, answer.text
    assert pretend.requests[0].params.speculative_lora == "sql"
    for wrong in ("", "a" * 129, 3):
        assert (await client.post(path, json={**body, "speculative_lora": wrong})).status_code == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_beams_are_not_drafted(client, path):
    beams = {"use_beam_search": True, "n": 2}
    error = await refused(client, path, **beams, speculative=True)
    assert error["param"] == "speculative"
    assert error["message"] == "`speculative` has no effect with `use_beam_search`; leave it out."
    assert "body.speculative: Input should be" in (await refused(client, path, speculative="maybe"))["message"]


async def test_a_beam_search_refuses_a_prediction(client):
    error = await refused(client, use_beam_search=True, n=2, prediction=predicted("Hello"))
    assert error["message"] == "`prediction` has no effect with `use_beam_search`; leave it out."


async def test_the_client_of_openai_gets_the_error(tmp_path):
    async with talking(tmp_path, Scripted("Hello")) as client:
        with pytest.raises(openai.BadRequestError, match="`prediction` takes parts of type text only"):
            await client.chat.completions.create(**ASK, prediction=predicted([{"type": "refusal", "refusal": "no"}]))


async def test_what_is_counted_does_not_depend_on_how_many_tokens_come_at_once(tmp_path):
    found = []
    for per_step in (1, 5):
        pretend = Scripted("one two four five six", per_step=per_step)
        async with talking(tmp_path, pretend) as client:
            answer = await client.chat.completions.create(**ASK, prediction=predicted("one two three four five six"))
            details = answer.usage.completion_tokens_details
            found.append((details.accepted_prediction_tokens, details.rejected_prediction_tokens))
    assert found[0] == found[1]
    assert found[0] == (21, 6)
