"""`/generate`, `/tokenize` and `/detokenize`."""

import json

import pytest
from live_server import chunks_of


async def test_generate_takes_text_or_ids_and_gives_text_and_ids(client, pretend):
    flat = await client.post("/generate", json={"prompt": "abc", "max_tokens": 3})
    nested = {"input_ids": [97, 98, 99], "sampling_params": {"max_new_tokens": 3}}
    for answer in (flat, await client.post("/generate", json=nested)):
        body = answer.json()
        assert (body["text"], body["token_ids"], body["finish_reason"]) == ("Hel", [72, 101, 108], "length")
        assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    body = (await client.post("/generate", json={"text": "abc", "n": 2, "max_tokens": 2})).json()
    assert (body["text"], body["token_ids"]) == (["He", "el"], [[72, 101], [101, 108]])
    answer = await client.post("/generate", json={"prompt_token_ids": [97], "max_tokens": 2, "stream": True})
    events = [json.loads(event) for event in chunks_of(answer.text)]
    assert [event.get("text") for event in events] == ["H", "e", None]
    assert [event.get("token_ids") for event in events] == [[72], [101], None]
    assert events[-1]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "text": "b"}])
async def test_generate_wants_exactly_one_prompt(client, body):
    answer = await client.post("/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_tokenize_and_detokenize_are_inverse(client):
    answer = (await client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True})).json()
    assert answer == {"count": 3, "max_model_len": 128, "tokens": [104, 195, 169], "token_strs": ["h", "Ã", "©"]}
    assert (await client.post("/detokenize", json={"tokens": answer["tokens"]})).json() == {"prompt": "hé"}
    chat = {"messages": [{"role": "user", "content": "h"}], "add_generation_prompt": False}
    assert (await client.post("/tokenize", json=chat)).json()["tokens"] == [258, 104, 256]
    answer = await client.post("/detokenize", json={"tokens": [264]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
