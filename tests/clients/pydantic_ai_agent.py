"""pydantic-ai: an agent with a tool, and an answer of a type, by chat, responses and messages. Arguments: URL."""

import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]
OPENAI = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
ANTHROPIC = AnthropicProvider(base_url=URL, api_key="none")
SETTINGS = {"temperature": 0, "max_tokens": 64}


class City(BaseModel):
    city: Literal["Belcast", "Dorun"]


def models(name):
    """The same model through each API."""
    chat, responses = (kind(name, provider=OPENAI) for kind in (OpenAIChatModel, OpenAIResponsesModel))
    return chat, responses, AnthropicModel(name, provider=ANTHROPIC)


def answer_of(model):
    """What an agent says about the weather, whole and streamed; it has called its tool each time."""
    cities = []
    agent = Agent(model, model_settings=SETTINGS)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a place."""
        cities.append(city)
        return '{"sky": "sunny", "temperature": 21}'

    answer = agent.run_sync("What is the weather in Lisbon?").output
    with agent.run_stream_sync("What is the weather in Lisbon?") as stream:
        assert "".join(stream.stream_text(delta=True)) == answer, model
    assert cities == ["Lisbon", "Lisbon"], (model, cities)
    assert "sunny" in answer, (model, answer)
    return answer


answers = [answer_of(model) for model in models("demo-tools")]
for model in models("demo-chat")[:2]:
    agent = Agent(model, output_type=NativeOutput(City), model_settings=SETTINGS)
    city = agent.run_sync("What is the capital of Arvia?").output
    assert isinstance(city, City), (model, city)
print(answers, city)
