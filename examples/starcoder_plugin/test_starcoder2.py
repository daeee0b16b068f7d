"""Logits of tiny random models."""

import pytest

from quire_testing import check_architecture


@pytest.mark.parametrize("overrides", [{}, {"sliding_window": 5}, {"use_bias": False, "tie_word_embeddings": False}])
def test_logits_match_transformers(overrides):
    check_architecture("Starcoder2ForCausalLM", **overrides)
