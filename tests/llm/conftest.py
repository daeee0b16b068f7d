"""An `LLM` without a model, and a tiny model with adapters."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from adapted_rig import merge, merged_answers, write_adapters
from engine_rig import Answer
from parrot_engine import ParrotEngine
from random_adapters import Kit
from tiny_tokenizers import byte_level, save

from quire import LLM
from quire.records import Registry
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo
from quire_testing.tiny import tiny_llama


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[LLM]:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    info = ModelInfo(
        name="parrot",
        aliases=(),
        root="parrot",
        folder=str(tmp_path),
        architecture="Parrot",
        dtype="float32",
        device="cpu",
        max_model_len=64,
        vocab_size=tokenizer.vocab_size,
        eos_ids=(),
        num_pages=8,
        page_size=16,
        num_parameters=0,
        sampling_defaults={"temperature": 0.5, "unheard_of": 1},
    )
    with LLM.from_engine(ParrotEngine(info), tokenizer, Registry()) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def expected_answers(
    folder: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Answer]:
    """What the model generates for each prompt with each adapter merged into its weights."""
    return merged_answers(merge(folder, adapters, tmp_path_factory.mktemp("merged")))


@pytest.fixture
def kit() -> Kit:
    return Kit()
