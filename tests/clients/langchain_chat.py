"""langchain: chat through OpenAI's two APIs, Anthropic's and Ollama's, with a tool; embeddings. Arguments: URL."""

import sys
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

URL = sys.argv[1]
OPENAI = {"base_url": f"{URL}/v1", "api_key": "none"}


class City(BaseModel):
    """A city."""

    city: Literal["Belcast", "Dorun"]


@tool
def get_weather(city: str) -> str:
    """Get the weather of a place."""
    return '{"sky": "sunny", "temperature": 21}'


def models(name):
    """The same model through each API."""
    return (
        ChatOpenAI(model=name, temperature=0, max_retries=0, **OPENAI),
        ChatOpenAI(model=name, temperature=0, max_retries=0, use_responses_api=True, **OPENAI),
        ChatAnthropic(model=name, temperature=0, max_retries=0, max_tokens=64, base_url=URL, api_key="none"),
        ChatOllama(model=name, temperature=0, base_url=URL),
    )


for chat, tools in zip(models("demo-chat"), models("demo-tools"), strict=True):
    kind = type(chat).__name__
    whole = chat.invoke("What is the capital of Arvia?").text
    streamed = "".join(chunk.text for chunk in chat.stream("What is the capital of Arvia?"))
    assert whole == streamed == "The capital of Arvia is Belcast.", (kind, whole, streamed)

    offered = tools.bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Lisbon?")]
    asked = offered.invoke(messages)
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Lisbon"}), (kind, call)
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    answer = offered.invoke([*messages, asked, result]).text
    assert "sunny" in answer, (kind, answer)

    if not isinstance(chat, ChatAnthropic):  # that asks for a tool call, on which the demo model is not trained
        city = chat.with_structured_output(City, method="json_schema").invoke("What is the capital of Arvia?")
        assert isinstance(city, City), (kind, city)

embeddings = OpenAIEmbeddings(model="demo-embed", check_embedding_ctx_length=False, **OPENAI)
vectors = embeddings.embed_documents(["a", "b"])
assert [len(vector) for vector in vectors] == [128, 128], vectors
print(whole, answer, city, len(vectors[0]))
