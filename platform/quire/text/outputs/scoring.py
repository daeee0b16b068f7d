"""Similarity scores of text pairs: which texts are paired, and how their vectors are compared.

A model with one class is a cross-encoder, which scores a pair itself. Other models embed each text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.errors import BadRequest
from quire.params.pooling import PoolingResult, tasks_listed

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray


def scoring_task(name: str, tasks: Sequence[str], labels: Sequence[str]) -> str:
    """The pooling task for scoring with the model `name`: "classify" for pairs, or "embed" or "token_embed" for texts.

    Raises BadRequest for a model without any of these tasks.
    """
    if "classify" in tasks and len(labels) == 1:
        return "classify"
    for task in ("embed", "token_embed"):
        if task in tasks:
            return task
    raise BadRequest(
        f"The model `{name}` cannot score texts: that takes classify with one class (it has {len(labels)}), embed or"
        f" token_embed. It can do: {tasks_listed(tasks)}.",
        "model",
    )


def pairs(num_first: int, num_second: int) -> list[tuple[int, int]]:
    """The index pairs of texts to compare: one text with each of the others, or two lists of equal length pairwise.

    Raises BadRequest for empty lists and for other lengths.
    """
    if not num_first or not num_second:
        raise BadRequest("There must be at least one text on either side.")
    if num_first == num_second:
        return [(i, i) for i in range(num_first)]
    if num_first == 1:
        return [(0, i) for i in range(num_second)]
    raise BadRequest(
        f"{num_first} texts cannot be compared with {num_second}: there must be one on the first side and any number on"
        " the second, or as many on either."
    )


def score(task: str, first: PoolingResult, second: PoolingResult) -> float:
    """The score of a pair of pooled texts. task: "embed" or "token_embed"."""
    compare = maxsim if task == "token_embed" else cosine
    return compare(first.numbers(), second.numbers())


def cosine(first: NDArray[float32], second: NDArray[float32]) -> float:
    """Cosine similarity of two vectors [size]; 0 if one of them is zero."""
    a, b = first.astype("f8"), second.astype("f8")
    lengths = float(a @ a) ** 0.5 * float(b @ b) ** 0.5
    return float(a @ b) / lengths if lengths else 0.0


def maxsim(query: NDArray[float32], document: NDArray[float32]) -> float:
    """MaxSim (ColBERT): the sum over the query's tokens of the largest dot product with a token of the document.

    query: [tokens, size]; document: [tokens, size].
    """
    products = query @ document.T  # [query tokens, document tokens]
    return float(products.max(axis=1).sum(dtype="f8"))
