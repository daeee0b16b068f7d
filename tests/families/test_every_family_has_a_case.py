"""No bundled architecture is left out of the tests of families, and none is tested twice."""

from __future__ import annotations

from collections import Counter

import attention_cases
import dense_cases
import hybrid_cases
import latent_cases
import moe_cases
import transformers

from quire.hooks import registry

FILES = (attention_cases, dense_cases, hybrid_cases, latent_cases, moe_cases)
CAUSAL = ("ForCausalLM", "LMHeadModel")


def test_each_causal_architecture_that_transformers_has_is_covered_once() -> None:
    bundled = registry.load(None).by_hook("quire_architectures")
    texts = {name for name, architecture in bundled.items() if architecture.tower is None}
    names = {name for name in texts if name.endswith(CAUSAL) and hasattr(transformers, name)}
    covered = Counter(case.architecture for file in FILES for case in file.CASES)
    assert names - set(covered) == set(), "add a case to tests/helpers/families/"
    assert {name for name, count in covered.items() if count > 1} == set()
