"""Models that refuse adapters."""

from __future__ import annotations

import pytest
from lora_rig import Base, Ours


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    base = Base(tmp_path_factory.mktemp("lora") / "base", "LlamaForCausalLM")
    return Ours(base, max_rank=16)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    return Ours(Base(tmp_path_factory.mktemp("lora") / "base", "MixtralForCausalLM"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("lora") / "base", "GPT2LMHeadModel")
