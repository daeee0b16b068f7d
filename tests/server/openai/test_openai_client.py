"""Every documented call through the `openai` client, against `platform serve` with a tiny random model."""

import httpx
import openai
import pytest
from serving import serving

from quire_testing import tiny_llama

HI = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tiny_llama(tmp_path_factory.mktemp("model"))
    with serving(folder, "--served-model-name", "tiny", "--device", "cpu", "--num-pages", "64") as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
async def async_client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_models_are_listed_and_retrieved(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "quire"
    with pytest.raises(openai.NotFoundError, match="Valid aliases: tiny"):
        client.models.retrieve("none")


def test_a_completion_and_its_stream_say_the_same(client):
    asked = {"model": "tiny", "prompt": "Once", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked)
    assert whole.object == "text_completion"
    assert whole.usage.completion_tokens <= 12
    with client.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_chat_answer_and_its_stream_say_the_same(client):
    asked = {"model": "tiny", "messages": HI, "max_completion_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant"
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_the_clients_own_streaming_helper_understands_the_stream(client):
    with client.chat.completions.stream(
        model="tiny", messages=HI, max_tokens=8, logit_bias={"65": 100}, stop="AAA", logprobs=True
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "logprobs.content.delta"} <= kinds
    assert final.choices[0].finish_reason == "stop"


async def test_the_async_client_asks_many_things_at_once(async_client):
    import asyncio

    answers = await asyncio.gather(
        *(async_client.completions.create(model="tiny", prompt=f"{i}", max_tokens=6, temperature=0) for i in range(8))
    )
    again = await async_client.completions.create(model="tiny", prompt="3", max_tokens=6, temperature=0)
    assert answers[3].choices[0].text == again.choices[0].text
    stream = await async_client.chat.completions.create(model="tiny", messages=HI, max_tokens=6, stream=True)
    assert [chunk async for chunk in stream][-1].choices[0].finish_reason in ("length", "stop")


def test_several_prompts_and_samples_come_numbered(client):
    answer = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=4, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    ids = client.completions.create(model="tiny", prompt=[[97], [98]], n=2, max_tokens=4, seed=1)
    assert [choice.text for choice in ids.choices] == [choice.text for choice in answer.choices]


def test_logprobs_of_completions_and_chat(client):
    answer = client.completions.create(model="tiny", prompt="ab", max_tokens=3, logprobs=2, echo=True, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens[:2] == ["a", "b"]
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert len(logprobs.text_offset) == len(logprobs.top_logprobs) == len(logprobs.tokens)
    answer = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=3, logprobs=True, top_logprobs=3, temperature=0
    )
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob


def test_scoring_gives_the_logprobs_of_the_prompt_alone(client):
    answer = client.completions.create(model="tiny", prompt="abc", max_tokens=0, logprobs=0, echo=True)
    assert answer.choices[0].text == "abc"
    assert len(answer.choices[0].logprobs.tokens) == 3
    assert answer.usage.completion_tokens == 0


def test_stop_seed_bias_and_penalties(client):
    free = client.completions.create(model="tiny", prompt="x", max_tokens=24, seed=5, logit_bias={"256": -100})
    again = client.completions.create(model="tiny", prompt="x", max_tokens=24, seed=5, logit_bias={"256": -100})
    assert free.choices[0].text == again.choices[0].text
    forced = client.completions.create(
        model="tiny", prompt="x", max_tokens=4, logit_bias={"65": 100}, frequency_penalty=0.5, presence_penalty=0.5
    )
    assert forced.choices[0].text == "AAAA"
    stopped = client.completions.create(model="tiny", prompt="x", max_tokens=9, logit_bias={"65": 100}, stop="AAA")
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("", "stop")


def test_a_stream_that_tells_of_several_tokens_at_once_says_the_same(client):
    asked = {"model": "tiny", "prompt": "x", "max_tokens": 30, "seed": 5, "logit_bias": {"256": -100}, "logprobs": 1}
    whole = client.completions.create(**asked)
    for stop in (None, whole.choices[0].text[9:12]):
        ends = client.completions.create(**asked, stop=stop).choices[0]
        stream = list(client.completions.create(**asked, stop=stop, stream=True, extra_body={"stream_interval": 7}))
        assert "".join(chunk.choices[0].text for chunk in stream) == ends.text
        assert stream[-1].choices[0].finish_reason == ends.finish_reason
        tokens = [token for chunk in stream if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.tokens]
        assert tokens == ends.logprobs.tokens
        if stop is None:
            assert len(stream) == 6  # 1 token, four times 7, and the last


def test_fields_beyond_openais_go_through_extra_body(client):
    answer = client.completions.create(
        model="tiny",
        prompt="x",
        max_tokens=4,
        extra_body={"top_k": 1, "min_tokens": 4, "ignore_eos": True, "return_token_ids": True, "cache_salt": "s"},
    )
    assert len(answer.choices[0].token_ids) == 4
    beams = client.completions.create(model="tiny", prompt="x", n=2, max_tokens=4, extra_body={"use_beam_search": True})
    assert len(beams.choices) == 2


def test_a_prediction_is_counted_in_the_usage_and_in_the_metrics_and_changes_no_answer(client, url):
    letters = {"allowed_token_ids": list(range(97, 123)), "ignore_eos": True}
    asked = {"model": "tiny", "messages": HI, "max_tokens": 60, "temperature": 0, "extra_body": letters}
    plain = client.chat.completions.create(**asked)
    text = plain.choices[0].message.content
    assert "spec_decode_num_drafts_total{" not in httpx.get(f"{url}/metrics").text
    answers = [client.chat.completions.create(**asked, prediction={"type": "content", "content": text}) for _ in "123"]
    for answer in answers:
        assert answer.choices[0].message.content == text
        details = answer.usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (60, 0)
    off = {**letters, "speculative": False}
    last = client.chat.completions.create(
        **{**asked, "extra_body": off}, prediction={"type": "content", "content": text}
    )
    assert last.choices[0].message.content == text


def test_errors_are_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="none", messages=HI)
    assert caught.value.param == "model"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HI, temperature=-1)
    assert (caught.value.param, caught.value.type) == ("temperature", "BadRequestError")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="tiny", prompt="x" * 1000)


def test_a_stream_that_is_closed_early_leaves_the_server_well(client):
    stream = client.completions.create(model="tiny", prompt="x", max_tokens=400, stream=True)
    next(iter(stream))
    stream.close()
    assert client.completions.create(model="tiny", prompt="x", max_tokens=1).choices
