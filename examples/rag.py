"""Retrieval-augmented answers: an embedder finds passages, a reranker chooses one, a chat model answers from it.

Run a server with `platform serve`, then: python examples/rag.py [URL] [QUESTION]
"""

import sys

import httpx
from openai import OpenAI

PASSAGES = [
    "Vesmar is governed from Tolwick.",
    "Boats cross Vesmar on the Ashmere.",
    "The beast that Vesmar holds dear is the lynx.",
    "The parliament of Fenmar meets in Harlow.",
    "People on Fenmar love to eat barley soup.",
    "Fenmar flies a flag that is green.",
]
"""About islands that no model of the server has met: what it answers about them, it reads here."""


def embed(client: OpenAI, texts: list[str]) -> list[list[float]]:
    """Vectors of length 1."""
    return [item.embedding for item in client.embeddings.create(model="demo-embed", input=texts).data]


def nearest(client: OpenAI, question: str, count: int) -> list[str]:
    """The passages whose embeddings have the largest dot product with that of the question."""
    (wanted,), known = embed(client, [question]), embed(client, PASSAGES)
    scores = [sum(a * b for a, b in zip(wanted, vector, strict=True)) for vector in known]
    ranked = sorted(range(len(PASSAGES)), key=lambda i: -scores[i])
    return [PASSAGES[i] for i in ranked[:count]]


def best(client: OpenAI, question: str, passages: list[str]) -> str:
    """The passage that most probably answers the question."""
    body = {"model": "demo-rerank", "query": question, "documents": passages, "top_n": 1}
    answer = httpx.post(str(client.base_url.join("rerank")), json=body).raise_for_status()
    text: str = answer.json()["results"][0]["document"]["text"]
    return text


def main(url: str = "http://127.0.0.1:8000/v1", question: str = "From which city is Vesmar governed?") -> None:
    """Print the passage that the model gets, and its answer."""
    client = OpenAI(base_url=url, api_key="none")
    passage = best(client, question, nearest(client, question, 3))
    print(f"passage: {passage}")
    prompt = f"Answer from these passages:\n- {passage}\n\n{question}"
    answer = client.chat.completions.create(
        model="demo-reader", messages=[{"role": "user", "content": prompt}], temperature=0
    )
    print(f"answer:  {answer.choices[0].message.content}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
