"""Logits of tiny random models, whole and in chunks."""

import pytest

from quire_testing import check_architecture


@pytest.mark.parametrize("overrides", [{}, {"attention_window_size": 5, "conv1d_width": 3, "num_hidden_layers": 4}])
def test_logits_match_transformers(overrides):
    # sqrt(1 - a²) loses digits where a decay is near 1, in transformers too
    check_architecture("RecurrentGemmaForCausalLM", tolerance=2e-3, **({"num_hidden_layers": 3} | overrides))
