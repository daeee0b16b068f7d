"""Which texts are compared, and the numbers that come of it; torch is the oracle."""

import pytest
import torch

from quire.errors import BadRequest
from quire.params.pooling import PoolingResult
from quire.text.outputs.scoring import cosine, maxsim, pairs, score, scoring_task


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_cosine_is_that_of_torch():
    first, second = drawn(5, 33), drawn(5, 33, seed=1)
    found = [cosine(a.numpy(), b.numpy()) for a, b in zip(first, second, strict=True)]
    assert found == pytest.approx(torch.cosine_similarity(first.double(), second.double()).tolist(), abs=1e-12)


def test_the_length_of_vectors_does_not_matter_to_cosine_and_none_gives_zero():
    a, b = drawn(8).numpy(), drawn(8, seed=1).numpy()
    assert cosine(a, b) == pytest.approx(cosine(1000 * a, b), abs=1e-6)
    assert cosine(a, a) == pytest.approx(1, abs=1e-12)
    assert cosine(a, 0 * b) == 0


def test_maxsim_sums_the_best_product_of_each_token_of_the_query():
    query, document = drawn(3, 16), drawn(7, 16, seed=1)
    expected = sum(max(float(q @ d) for d in document) for q in query)
    assert maxsim(query.numpy(), document.numpy()) == pytest.approx(expected, abs=1e-4)
    assert maxsim(document.numpy(), query.numpy()) != pytest.approx(expected, abs=1e-2)


def test_a_score_is_cosine_of_embeddings_and_maxsim_of_those_of_tokens():
    a, b = drawn(8).numpy(), drawn(8, seed=1).numpy()
    assert score("embed", PoolingResult.from_array(a), PoolingResult.from_array(b)) == cosine(a, b)
    a, b = drawn(2, 8).numpy(), drawn(3, 8, seed=1).numpy()
    assert score("token_embed", PoolingResult.from_array(a), PoolingResult.from_array(b)) == maxsim(a, b)


def test_texts_are_paired_one_to_one_one_to_many_and_many_to_as_many():
    assert pairs(1, 1) == [(0, 0)]
    assert pairs(1, 3) == [(0, 0), (0, 1), (0, 2)]
    assert pairs(2, 2) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("sizes", [(2, 1), (2, 3), (3, 2), (0, 1), (1, 0)])
def test_other_numbers_of_texts_cannot_be_paired(sizes):
    with pytest.raises(BadRequest, match=r"texts cannot be compared|at least one text"):
        pairs(*sizes)


@pytest.mark.parametrize(
    ("tasks", "labels", "expected"),
    [
        (("classify", "token_classify"), ("yes",), "classify"),
        (("embed", "classify"), ("a", "b"), "embed"),
        (("generate", "embed", "token_embed"), (), "embed"),
        (("token_embed",), (), "token_embed"),
    ],
)
def test_how_a_model_scores_depends_on_what_it_can_do(tasks, labels, expected):
    assert scoring_task("m", tasks, labels) == expected


def test_a_model_that_can_do_none_of_it_is_refused_with_what_it_can():
    with pytest.raises(BadRequest, match=r"`m` cannot score texts.*it has 3.*generate, classify"):
        scoring_task("m", ("generate", "classify"), ("a", "b", "c"))
