"""litellm: `openai`, `anthropic` and `ollama_chat` with streams and tools; responses, embeddings. Arguments: URL."""

import json
import sys

import litellm

URL = sys.argv[1]
BASES = {"openai": f"{URL}/v1", "anthropic": URL, "ollama_chat": URL}
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(provider, model, messages, **more):
    settings = {"api_base": BASES[provider], "api_key": "none", "temperature": 0, "max_tokens": 64, **more}
    return litellm.completion(model=f"{provider}/{model}", messages=messages, **settings)


for provider in BASES:
    question = [{"role": "user", "content": "What is the capital of Arvia?"}]
    whole = ask(provider, "demo-chat", question).choices[0].message.content
    chunks = ask(provider, "demo-chat", question, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole == streamed == "The capital of Arvia is Belcast.", (provider, whole, streamed)

    messages = [{"role": "user", "content": "What is the weather in Lisbon?"}]
    tools = [{"type": "function", "function": WEATHER}]
    message = ask(provider, "demo-tools", messages, tools=tools).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Lisbon"}, (provider, call)
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "sunny", "temperature": 21}'}
    answer = ask(provider, "demo-tools", [*messages, message.model_dump(), result], tools=tools)
    assert "sunny" in answer.choices[0].message.content, (provider, answer)

settings = {"api_base": BASES["openai"], "api_key": "none"}
response = litellm.responses(model="openai/demo-chat", input="What is 12 plus 30?", temperature=0, **settings)
assert "42" in response.output[0].content[0].text, response
embedded = litellm.embedding(model="openai/demo-embed", input=["a", "b"], encoding_format="float", **settings)
assert len(embedded.data) == 2, embedded
print(whole, answer.choices[0].message.content, len(embedded.data[0]["embedding"]))
