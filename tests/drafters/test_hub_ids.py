"""`model` of a drafter may be a hub id, found in the cache of the hub in these tests, as `--model` may."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from engine_rig import greedy, rig_of
from head_rig import write_head
from random_heads import EAGLE_CONFIG, eagle_tensors, medusa_tensors

from quire.errors import ConfigError
from quire_testing.tiny import tiny_llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache; the hub itself is never asked."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached(hub: Path, repo: str, folder: Path) -> str:
    """Move a folder into the cache; returns its hub id."""
    root = hub / f"models--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    shutil.move(folder, root / "snapshots" / COMMIT)
    return repo


def heads(method: str, folder: Path, file: str) -> Path:
    if method == "medusa":
        return write_head(folder, {}, medusa_tensors(2), file)
    return write_head(folder, EAGLE_CONFIG, eagle_tensors(), file)


CASES = [
    ("medusa", "medusa_lm_head.safetensors"),
    ("medusa", "medusa_lm_head.pt"),
    ("eagle", "model.safetensors"),
    ("eagle", "pytorch_model.bin"),
]


@pytest.mark.parametrize(("method", "file"), CASES)
def test_heads_are_found_by_hub_id(hub: Path, tmp_path: Path, method: str, file: str) -> None:
    folder = tiny_llama(tmp_path / "tiny", seed=3)
    config: dict[str, Any] = {
        "method": method,
        "model": cached(hub, "owner/heads", heads(method, tmp_path / "heads", file)),
        "num_speculative_tokens": 2,
        "adaptive": False,
    }
    with rig_of(folder, speculative_config=config, download_dir=str(hub)) as rig:
        rig.tokens([[5, 6, 7]], greedy(8, ignore_eos=True))
        stats = rig.engine.stats().speculation
        assert stats is not None
        assert stats.num_draft_tokens_total > 0
    with rig_of(folder, speculative_config={**config, "revision": COMMIT}, download_dir=str(hub)):
        pass
    unknown = {**config, "revision": "other"}
    with (
        pytest.raises(ConfigError, match=r"`model` of --speculative-config: .*offline mode"),
        rig_of(folder, speculative_config=unknown, download_dir=str(hub)),
    ):
        pass


def test_a_draft_model_is_found_by_hub_id(hub: Path, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "tiny", seed=3)
    config = {
        "model": cached(hub, "owner/small", tiny_llama(tmp_path / "small", seed=3)),
        "num_speculative_tokens": 4,
        "adaptive": False,
    }
    with rig_of(folder, speculative_config=config, download_dir=str(hub), max_num_batched_tokens=64) as rig:
        rig.tokens([[5, 6, 7]], greedy(11, ignore_eos=True))
        assert rig.engine.stats().num_steps_total == 1 + 2


@pytest.mark.parametrize("method", ["draft_model", "medusa", "eagle"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("owner/unknown", "There is no folder 'owner/unknown', and it cannot be downloaded .*: .*offline mode"),
        ("no/such/folder/here", "There is no folder 'no/such/folder/here', and it is not a hub id either"),
        ("owner/../x", "it is not a hub id either"),
    ],
)
def test_what_cannot_be_found_is_refused(hub: Path, tmp_path: Path, method: str, model: str, said: str) -> None:
    folder = tiny_llama(tmp_path / "tiny", seed=3)
    config = {"method": method, "model": model}
    with pytest.raises(ConfigError, match=said), rig_of(folder, speculative_config=config, download_dir=str(hub)):
        pass
