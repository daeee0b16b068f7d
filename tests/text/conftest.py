"""Tokenizers."""

import pytest
from tiny_tokenizers import KINDS, byte_fallback, byte_level, save

from quire.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save(byte_level(), tmp_path_factory.mktemp("byte_level")))


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save(byte_fallback(), tmp_path_factory.mktemp("byte_fallback")))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: Tokenizer.load(save(make(), root / kind)) for kind, make in KINDS.items()}
