"""Requests that once froze the server or a stream, and the largest legal ones that are more than one field."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from bases import BASES
from demos import form, picture, wav
from largest import MAX_CHARS, MAX_CONTAINERS, MAX_VALUES, Case, of_json
from wire import WEBSOCKET

CHAT, COMPLETE, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
ALL = {"ignore_eos": True}


def chat(text: Any = "Hello!", **more: Any) -> dict[str, Any]:
    return {"model": "demo-chat", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def complete(prompt: Any = "Once", **more: Any) -> dict[str, Any]:
    return {"model": "demo-chat", "prompt": prompt, "max_tokens": 4, **more}


def logprobs() -> Iterator[Case]:
    ids = [20] * 900
    yield of_json("prompt_logprobs -1, 900 tokens", COMPLETE, lambda: complete(ids, prompt_logprobs=-1))
    yield of_json("prompt_logprobs 20, 1000 tokens", COMPLETE, lambda: complete([20] * 1000, prompt_logprobs=20))
    more = {"max_tokens": 200, "n": 8, "logprobs": True, **ALL}
    yield of_json("top_logprobs -1, n 8, 200 tokens", CHAT, lambda: chat(top_logprobs=-1, **more))
    yield of_json("top_logprobs 20, n 8, 200 tokens", CHAT, lambda: chat(top_logprobs=20, **more))
    yield of_json("logprobs 20, n 128, 60 tokens", COMPLETE, lambda: complete(n=128, max_tokens=60, logprobs=20, **ALL))
    echo = {"echo": True, "logprobs": 20, "max_tokens": 1}
    yield of_json("echo, logprobs 20, 32 prompts of 900", COMPLETE, lambda: complete([ids] * 32, **echo))
    streamed = {"stream": True, "logprobs": 20, "n": 32, "max_tokens": 60}
    yield of_json("streamed, logprobs 20, n 32", COMPLETE, lambda: complete(**streamed, **ALL))


def texts() -> Iterator[Case]:
    for size in (1_000_000, MAX_CHARS, 9_800_000, 30_000_000):
        body = lambda size=size: {"model": "demo-chat", "prompt": "ab " * (size // 3)}  # noqa: E731
        yield of_json(f"/tokenize, {size / 1e6:.1f} MB", TOKENIZE, body)
    yield of_json("/tokenize, one word of 4 MB", TOKENIZE, lambda: {"model": "demo-chat", "prompt": "a" * MAX_CHARS})
    yield of_json("/tokenize with token_strs, 4 MB", TOKENIZE, lambda: {**_tokenize(), "return_token_strs": True})
    yield of_json("chat, message of 3 MB", CHAT, lambda: chat("ab " * 1_000_000))
    yield of_json("completion of 9 MB cut to 1 token", COMPLETE, lambda: complete("ab " * 3_000_000, **_cut()))
    yield of_json("completion of 4 MB cut to 1 token", COMPLETE, lambda: complete("ab " * (MAX_CHARS // 3), **_cut()))
    yield of_json("1 000 000 prompts", COMPLETE, lambda: complete(["a"] * 1_000_000))
    yield of_json("500 000 prompts", COMPLETE, lambda: complete(["a"] * 500_000))
    yield of_json("128 prompts of 1000 tokens", COMPLETE, lambda: complete([[20 + n] * 1000 for n in range(128)]))
    yield of_json("/detokenize, 4 000 000 ids", "/detokenize", lambda: _detokenize(4_000_000))
    yield of_json("/detokenize, 500 000 ids", "/detokenize", lambda: _detokenize(500_000))


def _tokenize() -> dict[str, Any]:
    return {"model": "demo-chat", "prompt": "ab " * (MAX_CHARS // 3)}


def _cut() -> dict[str, Any]:
    return {"truncate_prompt_tokens": 1}


def _detokenize(count: int) -> dict[str, Any]:
    return {"model": "demo-chat", "tokens": [20] * count}


def fields() -> Iterator[Case]:
    many = range(1_000_000)
    yield of_json("n 128, max_tokens 900", COMPLETE, lambda: complete(n=128, max_tokens=900, **ALL))
    beams = {"use_beam_search": True, "n": 64, "max_tokens": 64, **ALL}
    yield of_json("64 beams, 64 tokens", COMPLETE, lambda: complete(**beams))
    yield of_json("logit_bias with 10^6 keys", COMPLETE, lambda: complete(logit_bias={str(n): 1 for n in many}))
    yield of_json("logit_bias with 1024 keys", COMPLETE, lambda: complete(logit_bias={str(n): 1 for n in range(1024)}))
    yield of_json("allowed_token_ids, 10^6", COMPLETE, lambda: complete(allowed_token_ids=[20] * 1_000_000))
    yield of_json("allowed_token_ids, 500 000", COMPLETE, lambda: complete(allowed_token_ids=[20] * 500_000))
    yield of_json("stop_token_ids, 500 000", COMPLETE, lambda: complete(stop_token_ids=[20] * 500_000))
    yield of_json("100 000 stops", COMPLETE, lambda: complete(stop=["x"] * 100_000))
    yield of_json("128 bad words of 30 000", COMPLETE, lambda: complete(bad_words=["ab " * 10_000] * 128))


def bodies() -> Iterator[Case]:
    yield of_json("[[],[],…] of 28 MB", COMPLETE, lambda: b'{"prompt":[' + b"[]," * (28 << 20 >> 2) + b"[]]}")
    parts = [{"type": "text", "text": "a"}]
    yield of_json("300 000 parts of a message", CHAT, lambda: chat(parts * 300_000))
    yield of_json("as many parts as values allow", CHAT, lambda: chat(parts * (MAX_CONTAINERS // 2 - 100)))
    yield of_json("16 000 messages", CHAT, lambda: {**chat(), "messages": [{"role": "user", "content": "a"}] * 16_000})
    yield of_json("99 levels", COMPLETE, lambda: b'{"prompt":' + b"[" * 98 + b"]" * 98 + b"}")
    yield of_json("1 000 000 levels", COMPLETE, lambda: b'{"prompt":' + b"[" * 10**6 + b"]" * 10**6 + b"}")
    yield of_json("a number of 5 000 000 digits", COMPLETE, lambda: b'{"max_tokens":' + b"9" * 5_000_000 + b"}")
    yield of_json("10^6 times one key", COMPLETE, lambda: b"{" + b'"n":1,' * 10**6 + b'"prompt":"a"}')
    yield of_json("escapes, 31 MB", COMPLETE, lambda: b'{"prompt":"' + b"\\u00e9" * (5 << 20) + b'"}')
    yield of_json("unknown fields, as many as may be", COMPLETE, lambda: {**complete(), **_members("u")})


def _members(letter: str) -> dict[str, int]:
    return {f"{letter}{number}": number for number in range(MAX_CONTAINERS - 100)}


def media() -> Iterator[Case]:
    def pictures(count: int, side: int, kind: str = "PNG") -> Any:
        url = picture(side, side, kind)
        part = {"type": "image_url", "image_url": {"url": url}}
        body = chat([*[part] * count, {"type": "text", "text": "What is it?"}], model="demo-llava")
        return json.dumps(body).encode()[: 33 << 20]

    yield of_json("a picture of 9400 × 9400", CHAT, lambda: pictures(1, 9400))
    yield of_json("a JPEG of 9400 × 9400", CHAT, lambda: pictures(1, 9400, "JPEG"))
    yield of_json("64 pictures of 9400 × 9400", CHAT, lambda: pictures(64, 9400))
    yield of_json("64 pictures of 1000 × 1000", CHAT, lambda: pictures(64, 1000))
    yield of_json("20 pictures of 336 × 336", CHAT, lambda: pictures(20, 336))
    speech = "/v1/audio/transcriptions"
    for seconds, rate, channels in ((600, 16000, 1), (599, 8000, 2), (100, 44100, 2)):
        sound = lambda s=seconds, r=rate, c=channels: form(wav(s, r, c), model="demo-whisper")  # noqa: E731
        yield Case(f"{seconds} s of audio at {rate} × {channels}", speech, sound)
    yield from spoken()
    yield Case("31 MB of audio, 8 channels", speech, lambda: form(wav(40, 48000, 8), model="demo-whisper"))


def spoken() -> Iterator[Case]:
    """Messages to the WebSocket."""
    update = '{"type": "session.update", "session": %s}'
    commit = '{"type": "input_audio_buffer.commit"}'
    append = '{"type": "input_audio_buffer.append", "audio": "%s"}'
    sound = base64.b64encode(bytes(5 << 20)).decode()
    heard = {"format": {"type": "audio/pcmu"}, "transcription": {"model": "demo-whisper", "language": "en"}}
    whisper = update % json.dumps({"type": "transcription", "audio": {"input": heard}})
    cases = {
        "7 MB of audio in one event": [append % sound],
        "500 s of audio in one turn": [whisper, append % sound[: 4 * (4_000_000 // 3)], commit],
        "2000 small events": [append % "AAAA"] * 2000,
        "7 MB of nested lists": ['{"type": "a", "b": ' + "[" * (7 << 19) + "]" * (7 << 19) + "}"],
        "7 MB in an unknown field": ['{"type": "a", "b": "' + "x" * (7 << 20) + '"}'],
        "7 MB of a prompt": [update % json.dumps({"audio": {"input": {"transcription": {"prompt": "y" * (7 << 20)}}}})],
        "7 MB of wrong base64": [append % ("!" * (7 << 20))],
    }
    for name, messages in cases.items():
        body = "\n".join(messages).encode()
        yield Case(f"realtime: {name}", "/v1/realtime", lambda body=body: (body, WEBSOCKET))


def grammars() -> Iterator[Case]:
    slow = "root ::= a{2,4}\na ::= (b [a-z]+){2,4}\nb ::= (c [0-9a-f]* ){2,4}\n"
    slow += "c ::= ([a-c]+ d?){2,4}\nd ::= ([x-z]{1,9}){2,4}"
    free = {"max_tokens": 100, "temperature": 1, "seed": 1}
    yield of_json("a grammar of nested repetitions", COMPLETE, lambda: complete(**_of(grammar=slow), **free))
    nested = "(((a{1,40}){1,40}){1,40}b?){1,40}"
    yield of_json("a regex of nested repetitions", COMPLETE, lambda: complete(**_of(regex=nested), **free))
    yield of_json("a regex of 100 000 characters", COMPLETE, lambda: complete(**_of(regex="(ab|cd)" * 14_000), **free))
    words = [f"word {number} of many" for number in range(20_000)]
    yield of_json("20 000 choices", COMPLETE, lambda: complete(**_of(choice=words), **free))
    for count in (200, 2000, 8000):
        shape = {f"p{n}": {"type": "string", "pattern": f"[a-z]{{1,{n % 50 + 1}}}"} for n in range(count)}
        schema = {"type": "object", "properties": shape, "required": list(shape), "additionalProperties": False}
        yield of_json(f"a schema of {count} properties", CHAT, lambda s=schema: chat(**_of(json=s), **free_chat()))
    enum = {"enum": [f"value {number}" for number in range(10_000)]}
    yield of_json("a schema with an enum of 10 000", CHAT, lambda: chat(**_of(json=enum), **free_chat()))
    yield of_json("1024 tools", CHAT, lambda: {**chat(model="demo-tools"), "tools": tools(1024)})
    demanded = {"tools": tools(64), "tool_choice": "required"}
    yield of_json("64 tools, one demanded", CHAT, lambda: {**chat(model="demo-tools"), **demanded})
    schema = {"type": "object", "properties": {"x": {"$ref": "#"}, "y": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    yield of_json("a schema that contains itself", CHAT, lambda: chat(**_of(json=schema), **free_chat()))


def _of(**source: Any) -> dict[str, Any]:
    return {"structured_outputs": source}


def free_chat() -> dict[str, Any]:
    return {"max_tokens": 100, "temperature": 1, "seed": 1}


def tools(count: int) -> list[dict[str, Any]]:
    shape = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8)}}
    described = [{"name": f"tool_{n}", "description": "It does a thing.", "parameters": shape} for n in range(count)]
    return [{"type": "function", "function": one} for one in described]


def pooled() -> Iterator[Case]:
    long = "rain and sea " * 80
    embed = BASES["/v1/embeddings"]
    yield of_json("2048 texts to embed", "/v1/embeddings", lambda: {**embed, "input": ["rain"] * 2048})
    cut = {"truncate_prompt_tokens": -1}
    yield of_json("2048 long texts to embed", "/v1/embeddings", lambda: {**embed, "input": [long] * 2048, **cut})
    yield of_json("500 000 texts to embed", "/v1/embeddings", lambda: {**embed, "input": ["a"] * 500_000})
    tokens = {"task": "token_embed", "model": "demo-embed", **cut}
    yield of_json("embeddings of 512 × 256 tokens", "/pooling", lambda: {**tokens, "input": [long] * 512})
    kinds = ["float", "base64", "int8", "uint8", "binary", "ubinary"]
    cohere = {**BASES["/v2/embed"], "embedding_types": kinds, "texts": ["rain and sea"] * 2048}
    yield of_json("2048 texts to embed, six forms", "/v2/embed", lambda: cohere)
    pairs = {"model": "demo-rerank", **cut}
    yield of_json("2048 documents", "/rerank", lambda: {**pairs, "query": "rain", "documents": ["a sea"] * 2048})
    yield of_json("2048 long documents", "/rerank", lambda: {**pairs, "query": "rain", "documents": [long] * 2048})
    scored = {**pairs, "text_1": ["rain"] * 2048, "text_2": [long] * 2048}
    yield of_json("2048 long pairs", "/score", lambda: scored)


def all_findings() -> Iterator[Case]:
    """Every one."""
    assert MAX_VALUES
    for group in (logprobs, texts, fields, bodies, media, grammars, pooled):
        yield from group()
