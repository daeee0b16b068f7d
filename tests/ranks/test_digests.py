"""What tells models apart before ranks compute one together."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.engine.parallel.group import SAMPLE_BYTES, model_digest

SIZE = 100 * SAMPLE_BYTES


def loaded(folder: Path, parameters: int = 5) -> Any:
    return SimpleNamespace(
        info=SimpleNamespace(folder=str(folder), architecture="A", dtype="float32", num_parameters=parameters)
    )


def written(folder: Path, last: int = 0, name: str = "model.safetensors") -> Path:
    folder.mkdir()
    (folder / name).write_bytes(bytes(SIZE - 1) + bytes([last]))
    return folder


def test_copies_are_equal_and_other_weights_or_settings_are_not(tmp_path: Path) -> None:
    one, same = written(tmp_path / "one"), written(tmp_path / "same")
    digest = model_digest(loaded(one))
    assert model_digest(loaded(same)) == digest
    others = [
        loaded(written(tmp_path / "numbers", last=1)),
        loaded(written(tmp_path / "name", name="other.safetensors")),
        loaded(one, parameters=6),
    ]
    assert len({digest, *map(model_digest, others)}) == 4
    (same / "README.md").write_text("no weights")
    assert model_digest(loaded(same)) == digest
