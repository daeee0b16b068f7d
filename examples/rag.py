"""Retrieval-augmented answers: an embedder finds passages, a reranker chooses among them, a chat model reads them.

Run a server with `platform serve`, then: python examples/rag.py [URL] [QUESTION]
"""

import sys

import httpx
from openai import OpenAI

PASSAGES = [
    "Vesmar is governed from Tolwick.",
    "Boats cross Vesmar on the Ashmere.",
    "The beast that Vesmar holds dear is the lynx.",
    "The parliament of Quenby meets in Harlow.",
    "People on Quenby love to eat barley soup.",
    "Quenby flies a flag that is green.",
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


def rerank(client: OpenAI, question: str, passages: list[str], count: int) -> list[str]:
    """The passages that most probably answer the question."""
    body = {"model": "demo-rerank", "query": question, "documents": passages, "top_n": count}
    answer = httpx.post(str(client.base_url.join("rerank")), json=body).raise_for_status()
    return [result["document"]["text"] for result in answer.json()["results"]]


def main(url: str = "http://127.0.0.1:8000/v1", question: str = "From which city is Vesmar governed?") -> None:
    """Print the passages that the model gets, and its answer."""
    client = OpenAI(base_url=url, api_key="none")
    passages = rerank(client, question, nearest(client, question, 4), 2)
    for passage in passages:
        print(f"- {passage}")
    prompt = "Answer from these passages:\n" + "\n".join(f"- {passage}" for passage in passages) + f"\n\n{question}"
    answer = client.chat.completions.create(
        model="demo-reader", messages=[{"role": "user", "content": prompt}], temperature=0
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:3])
