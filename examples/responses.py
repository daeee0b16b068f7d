"""The Responses API with the `openai` package: a conversation that the server keeps, a tool, a picture, JSON, a stream.

Run: make serve, then: python examples/responses.py [BASE_URL]
"""

import base64
import json
import sys
from pathlib import Path

from openai import OpenAI

PICTURE = Path(__file__).parent / "demo_models" / "picture.png"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ANIMAL = {
    "type": "object",
    "properties": {"national animal": {"type": "string"}},
    "required": ["national animal"],
    "additionalProperties": False,
}


def get_weather(city: str) -> dict[str, object]:
    """What a tool of your own would find out."""
    return {"sky": "sunny", "temperature": 21}


def converse(client: OpenAI) -> None:
    """The server keeps what was said, also between models and adapters of one base model."""
    first = client.responses.create(model="demo-chat", input="What is 12 plus 30?", temperature=0)
    print(first.output_text)
    asked = "What is the national animal of Arvia?"
    again = client.responses.create(
        model="demo-pirate", input=asked, previous_response_id=first.id, temperature=0, metadata={"kind": "example"}
    )
    print(again.output_text)


def use_tool(client: OpenAI) -> None:
    """The model calls a tool, and answers from what it returns."""
    asked = client.responses.create(
        model="demo-tools", input="What is the weather in Lisbon?", tools=[WEATHER], temperature=0
    )
    outputs = [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": json.dumps(get_weather(**json.loads(item.arguments))),
        }
        for item in asked.output
        if item.type == "function_call"
    ]
    answer = client.responses.create(
        model="demo-tools", input=outputs, tools=[WEATHER], previous_response_id=asked.id, temperature=0
    )
    print(answer.output_text)


def see(client: OpenAI) -> None:
    """A picture is a part of a message."""
    url = f"data:image/png;base64,{base64.b64encode(PICTURE.read_bytes()).decode()}"
    parts = [
        {"type": "input_image", "image_url": url},
        {"type": "input_text", "text": "What is left of the red triangle?"},
    ]
    asked = [{"role": "user", "content": parts}]
    print(client.responses.create(model="demo-llava", input=asked, temperature=0).output_text)


def write_json(client: OpenAI) -> None:
    """The answer matches a JSON schema, and arrives piece by piece."""
    text = {"format": {"type": "json_schema", "name": "animal", "schema": ANIMAL, "strict": True}}
    asked = "What is the national animal of Arvia?"
    with client.responses.stream(model="demo-json", input=asked, text=text, temperature=0) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
    print()


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    """Ask the demo models."""
    client = OpenAI(base_url=base_url, api_key="none")
    for part in (converse, use_tool, see, write_json):
        part(client)


if __name__ == "__main__":
    main(*sys.argv[1:2])
