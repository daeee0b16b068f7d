"""The bundled fallback passes its conformance check, and the check finds fallbacks that break the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import CheckpointError
from quire.hooks import registry
from quire.records import ArchitectureFallback
from quire_testing import check_architecture_fallback
from quire_testing.tiny import tiny_llama, tiny_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that the fallback builds, and one with state in a form of its own, which it refuses."""
    root = tmp_path_factory.mktemp("fallbacks")
    return tiny_llama(root / "llama"), tiny_model(root / "rwkv", "RwkvForCausalLM", attention_hidden_size=64)


def test_the_bundled_fallback_passes(folders: tuple[Path, Path]) -> None:
    (fallback,) = registry.load(None).by_hook("quire_architecture_fallbacks").values()
    check_architecture_fallback(fallback, folders[:1], refused=folders[1:])


def test_broken_fallbacks_are_found(folders: tuple[Path, Path]) -> None:
    def fails(query: object) -> None:
        raise KeyError("hidden_size")

    def refuses(query: object) -> None:
        raise CheckpointError("This is refused.")

    with pytest.raises(AssertionError, match="find returned NoneType"):
        check_architecture_fallback(ArchitectureFallback("none", lambda query: None), folders[:1])  # type: ignore[arg-type, return-value]
    with pytest.raises(AssertionError, match="find raised KeyError"):
        check_architecture_fallback(ArchitectureFallback("fails", fails), [], refused=folders[1:])  # type: ignore[arg-type]
    with pytest.raises(CheckpointError):
        check_architecture_fallback(ArchitectureFallback("refuses", refuses), folders[:1])  # type: ignore[arg-type]
