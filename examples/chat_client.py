"""The `openai` client against a running Quire: one answer, a streamed one, and a follow-up.

Run: make serve, then: python examples/chat_client.py [BASE_URL]
"""

import sys

from openai import OpenAI


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    """Ask the first model of the server a few questions."""
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is 12 plus 30?"}]
    reply = client.chat.completions.create(model=model, messages=messages, temperature=0)
    print(reply.choices[0].message.content)

    messages += [reply.choices[0].message, {"role": "user", "content": "Sort 31, 7 and 19."}]
    for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:2])
