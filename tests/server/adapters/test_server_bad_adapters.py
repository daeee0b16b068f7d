"""Adapters that cannot be run, on the real server: refused with the reason, and nothing has changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_client import AdapterClient, error_of
from adapter_server_rig import PROMPT, Rig, configure, rewrite, served_adapters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with served_adapters(tmp_path_factory.mktemp("models")) as made:
        yield made


@pytest.fixture
def asks(rig: Rig) -> Iterator[AdapterClient]:
    """A client; what a test loads is unloaded after it."""
    yield rig.asks
    rig.forget()


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def widen(found: dict[str, torch.Tensor]) -> None:
    name = next(name for name in found if name.endswith("lora_A.weight"))
    found[name] = torch.zeros(found[name].shape[0], 7)


def misname(found: dict[str, torch.Tensor]) -> None:
    name = next(iter(found))
    found[name.replace("layers.0", "layers.77")] = found.pop(name)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (cut, "truncated"),
    "no-safetensors": (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"rubbish" * 9), "corrupt"),
    "no-tensors": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no tensors"),
    "no-json": (lambda folder: (folder / "adapter_config.json").write_text("{"), "is not valid JSON"),
    "unknown-kind": (
        lambda folder: configure(folder, peft_type="VERA"),
        "No loaded plugin runs adapters of type 'VERA'",
    ),
    "wrong-shape": (lambda folder: rewrite(folder, widen), "has shape [8, 7]; by adapter_config.json"),
    "no-such-module": (lambda folder: rewrite(folder, misname), "The adapter lacks"),
    "not-finite": (
        lambda folder: rewrite(folder, lambda found: next(iter(found.values())).fill_(float("nan"))),
        "finite",
    ),
    "another-mathematics": (lambda folder: configure(folder, alora_invocation_tokens=[1]), "alora_invocation_tokens"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_run_is_refused_with_the_reason_and_nothing_changes(
    rig: Rig, asks: AdapterClient, what: str
) -> None:
    spoil, said = BAD[what]
    folder = shutil.copytree(rig.good, rig.root / f"bad-{what}")
    spoil(folder)
    before = asks.rows(), asks.ids("plain", PROMPT)
    for name, inplace in (("bad", False), ("plain", True)):
        reply = asks.load(name, folder, base_model_name="one", load_inplace=inplace)
        status, kind, message, _ = error_of(reply)
        assert (status, kind) == (400, "InvalidUserInput")
        assert said in message
    (complaint,) = [row["error"] for row in asks.rows() if row["id"] == "plain"]
    assert said in complaint, "the old one goes on, and its row tells what went wrong"
    assert asks.ids("plain", PROMPT) == before[1]
    assert [num_unreported(row) for row in asks.rows()] == [num_unreported(row) for row in before[0]]
    assert asks.complete("bad").status_code == 404


def num_unreported(row: dict[str, Any]) -> dict[str, Any]:
    """Without what using it and failing to replace it changes."""
    return {name: value for name, value in row.items() if name not in ("error", "requests_total", "tier")}


def test_a_rank_above_the_largest_is_refused(rig: Rig, asks: AdapterClient) -> None:
    large = rig.one.adapter("large", r=32, target_modules=["q_proj"])
    status, kind, message, _ = error_of(asks.load("large", large, base_model_name="one"))
    assert (status, kind) == (400, "InvalidUserInput")
    assert "32" in message
    assert "--max-lora-rank" in message
