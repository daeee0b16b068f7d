"""`/v1/completions`: shapes of responses and streams."""

import json
from dataclasses import replace

from fake_client import PretendClient, http, info, pretend_app
from live_server import chunks_of

from quire.params.sampling import BeamSearchParams
from quire.params.structured import StructuredSpec
from quire.records import GrammarBackend, LogitsProcessor, Registry
from quire.settings.server_config import ServerConfig


async def complete(client, path="/v1/completions", **body):
    answer = await client.post(path, json={"prompt": "abc", **body})
    assert answer.status_code == 200, answer.text
    return chunks_of(answer.text) if body.get("stream") else answer.json()


async def streamed(client, **body):
    return [json.loads(event) for event in await complete(client, stream=True, **body)]


async def test_a_completion_has_the_shape_clients_expect(client):
    answer = await complete(client, max_tokens=5)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Hello",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


async def test_max_tokens_is_16_unless_said_otherwise(client, pretend):
    for body in ({}, {"max_tokens": None}):
        assert (await complete(client, **body))["usage"]["completion_tokens"] == 16


async def test_more_tokens_than_fit_are_refused_not_cut(client, pretend):
    answer = await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 126})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "max_tokens")
    assert error["message"].startswith("`max_tokens` is too large: 126. This model's maximum context length is 128")
    assert not pretend.requests


async def test_prompts_may_be_texts_or_ids_one_or_many(client, pretend):
    for prompt, ids in (
        ("ab", [(97, 98)]),
        ([97, 98], [(97, 98)]),
        (["a", "bc"], [(97,), (98, 99)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ):
        pretend.requests.clear()
        answer = await complete(client, prompt=prompt, max_tokens=1)
        assert [request.prompt.token_ids for request in pretend.requests] == ids
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(ids)))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_choices_are_numbered_by_prompt_then_by_sample(client):
    answer = await complete(client, prompt=["a", "b"], n=2, max_tokens=4)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "Hell"), (1, "ello"), (2, "Hell"), (3, "ello")]
    texts = {}
    for chunk in await streamed(client, prompt=["a", "b"], n=2, max_tokens=4):
        (choice,) = chunk["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "Hell", 1: "ello", 2: "Hell", 3: "ello"}


async def test_stop_strings_end_the_text_and_the_engine_hears_of_it(client, pretend):
    answer = await complete(client, stop=["wor", "zzz"], max_tokens=50)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello, ", "stop", "wor")
    assert pretend.aborted == [(pretend.requests[0].id, 0)]
    answer = await complete(client, stop="wor", include_stop_str_in_output=True, max_tokens=50)
    assert answer["choices"][0]["text"] == "Hello, wor"
    last = (await streamed(client, stop="wor", max_tokens=50))[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "wor")


async def test_stream_interval_comes_from_the_request_the_server_or_the_response_format(tmp_path):
    pretend = PretendClient()
    async with http(pretend_app(tmp_path, pretend, config=ServerConfig(stream_interval=3))) as client:
        for body in (
            {"stream": True},
            {"stream": True, "stream_interval": 5},
            {},
            {"stop": "x"},
            {"stream_interval": 2},
        ):
            await complete(client, **body)
        refused = await client.post("/v1/completions", json={"prompt": "a", "stream_interval": 0})
    assert [request.params.stream_interval for request in pretend.requests] == [3, 5, 16, 1, 2]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_interval")


async def test_stop_token_ids_are_reported_and_the_end_of_text_is_not(client, pretend):
    (choice,) = (await complete(client, stop_token_ids=[ord("o")]))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hell", "stop", ord("o"))
    pretend.ends_after = 3
    (choice,) = (await complete(client))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hel", "stop", None)


async def test_logprobs_are_four_parallel_lists(client):
    (choice,) = (await complete(client, max_tokens=2, logprobs=2))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["H", "e"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"H": -0.5, "I": -1.5}, {"e": -0.5, "f": -1.5}],
        "text_offset": [0, 1],
    }
    (choice,) = (await complete(client, max_tokens=1, logprobs=0, return_tokens_as_token_ids=True))["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:72"]
    assert choice["logprobs"]["top_logprobs"] == [{"token_id:72": -0.5}]


async def test_echo_repeats_the_prompt_with_its_logprobs(client):
    (choice,) = (await complete(client, echo=True, max_tokens=2, logprobs=1))["choices"]
    assert choice["text"] == "abcHe"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "H", "e"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
    chunks = await streamed(client, echo=True, max_tokens=2, logprobs=1)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abcH", "e"]
    assert chunks[0]["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert chunks[1]["choices"][0]["logprobs"]["text_offset"] == [4]


async def test_echo_without_new_tokens_scores_the_prompt(client):
    answer = await complete(client, echo=True, max_tokens=0, logprobs=1)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    (chunk,) = await streamed(client, echo=True, max_tokens=0)
    assert (chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) == ("abc", "length")


async def test_prompt_logprobs_and_token_ids_come_when_asked_for(client):
    (choice,) = (await complete(client, max_tokens=1, prompt_logprobs=1, return_token_ids=True))["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
        {"99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}},
    ]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98, 99], [72])
    first, second = await streamed(client, max_tokens=2, return_token_ids=True)
    assert first["choices"][0]["prompt_token_ids"] == [97, 98, 99]
    assert [chunk["choices"][0]["token_ids"] for chunk in (first, second)] == [[72], [101]]


async def test_usage_ends_a_stream_or_goes_with_every_chunk(client):
    chunks = await streamed(client, max_tokens=2, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert chunks[-1]["system_fingerprint"]
    assert "usage" not in chunks[0]
    always = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await streamed(client, max_tokens=2, stream_options=always)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


async def test_the_server_can_insist_on_usage_and_tell_cached_tokens(tmp_path):
    config = ServerConfig(enable_force_include_usage=True, enable_prompt_tokens_details=True)
    async with http(pretend_app(tmp_path, config=config)) as client:
        chunks = await streamed(client, max_tokens=1)
        assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        answer = await complete(client, prompt=["a", "b"], max_tokens=1)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


async def test_tokens_that_arrive_together_are_events_of_their_own_sent_at_once(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(per_step=3))) as client:
        chunks = await streamed(client, max_tokens=6, n=2, temperature=1)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "ell", "lo,", "o, "]


async def test_beam_search_gives_the_best_n(client, pretend):
    answer = await complete(client, use_beam_search=True, n=2, best_of=3, max_tokens=4, length_penalty=0.5)
    assert [choice["text"] for choice in answer["choices"]] == ["Hell", "ello"]
    params = pretend.requests[0].params
    assert isinstance(params, BeamSearchParams)
    assert (params.beam_width, params.length_penalty, params.temperature) == (3, 0.5, 0.0)


async def test_best_of_draws_more_than_it_gives(client, pretend):
    answer = await complete(client, best_of=3, max_tokens=4)
    assert len(answer["choices"]) == 1
    assert answer["usage"]["completion_tokens"] == 12
    assert pretend.requests[0].params.best_of == 3


async def test_sampling_fields_win_over_model_defaults_and_those_over_built_in_ones(tmp_path):
    defaults = {"temperature": 0.25, "top_k": 7, "repetition_penalty": 1.5}
    pretend = PretendClient(replace(info(), sampling_defaults=defaults))
    async with http(pretend_app(tmp_path, pretend)) as client:
        await complete(client)
        await complete(client, temperature=0.75, top_k=0, min_p=0.125)
    first, second = (request.params for request in pretend.requests)
    assert (first.temperature, first.top_k, first.repetition_penalty, first.min_p) == (0.25, 7, 1.5, 0.0)
    assert (second.temperature, second.top_k, second.repetition_penalty, second.min_p) == (0.75, 0, 1.5, 0.125)


async def test_every_sampling_field_reaches_the_engine(client, pretend):
    await complete(
        client,
        seed=7,
        logit_bias={"5": 150, "6": -1},
        allowed_token_ids=[72, 101],
        bad_words=["xy"],
        min_tokens=2,
        ignore_eos=True,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        priority=-3,
        cache_salt="salt",
        top_p=0.5,
    )
    request = pretend.requests[0]
    params = request.params
    assert (request.priority, request.cache_salt, params.seed, params.min_tokens) == (-3, "salt", 7, 2)
    assert params.logit_bias == {5: 100.0, 6: -1.0}
    assert params.allowed_token_ids == (72, 101)
    assert (120, 121) in params.bad_word_ids
    assert (params.ignore_eos, params.presence_penalty, params.frequency_penalty, params.top_p) == (
        True,
        0.5,
        -0.5,
        0.5,
    )


async def test_long_prompts_are_cut_on_request(client, pretend):
    await complete(client, prompt="abcdef", truncate_prompt_tokens=2)
    await complete(client, prompt="abcdef", truncate_prompt_tokens=2, truncation_side="right")
    await complete(client, prompt="x" * 500, truncate_prompt_tokens=-1, max_tokens=28)
    assert [request.prompt.token_ids for request in pretend.requests[:2]] == [(101, 102), (97, 98)]
    assert len(pretend.requests[2].prompt.token_ids) == 100


async def test_fields_of_plugins_travel_beside_the_parameters(tmp_path):
    fields = {"strength": float, "mode": str}
    processor = LogitsProcessor(name="p", fields=fields, build=lambda context: None)
    registry = Registry(records={"quire_logits_processors": {"p": processor}})
    pretend = PretendClient()
    async with http(pretend_app(tmp_path, pretend, registry=registry)) as client:
        await complete(client, strength=2, vllm_xargs={"mode": "x", "unheard": 1}, unknown_field=3)
        answer = await client.post("/v1/completions", json={"prompt": "a", "strength": "much"})
    assert pretend.requests[0].params.extra == {"strength": 2.0, "mode": "x"}
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "strength")


async def test_constraints_need_a_plugin_of_their_kind(tmp_path):
    backend = GrammarBackend(name="g", kinds=frozenset({"choice"}), build=lambda context: None)
    registry = Registry(records={"quire_grammar_backends": {"g": backend}})
    pretend = PretendClient()
    async with http(pretend_app(tmp_path, pretend, registry=registry)) as client:
        await complete(client, structured_outputs={"choice": ["a", "b"]})
        await complete(client, response_format={"type": "text"})
        answer = await client.post("/v1/completions", json={"prompt": "a", "response_format": {"type": "json_object"}})
    one_of = StructuredSpec(kind="choice", source='["a","b"]')
    assert [request.params.structured for request in pretend.requests] == [one_of, None]
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
