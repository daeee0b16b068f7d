"""The checks of adapter runtimes and of adapter sources accept correct ones, and name the fault of others."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from random_adapters import Scale, write_adapter
from safetensors.torch import save_file

from quire.errors import BadRequest
from quire.hooks.registry import load
from quire.records import AdapterRuntime, AdapterSource, Context
from quire_testing import check_adapter_runtime, check_adapter_source, tiny_llama


class Faulty(Scale):
    """A runtime of adapters of kind SCALE, with one fault."""

    def __init__(self, fault: str, context: Context) -> None:
        super().__init__(context)
        self.fault = fault

    def load(self, name: str, path: Path) -> Any:
        if self.fault == "loads anything" and name == "broken":
            return name, {}
        if not (path / "vectors.safetensors").exists() and self.fault != "raises anything":
            raise BadRequest("There are no vectors.")
        return super().load(name, path)

    def delta(self, table: Any, y: Any, x: Any, adapters: Any) -> Any:
        if self.fault == "changes nothing":
            return y
        return y * 1.001 if self.fault == "changes every row" else super().delta(table, y, x, adapters)

    def acquire_slot(self, adapter: Any) -> int | None:
        before = [None if other is None else other[0] for other in self.at]
        if self.fault == "never full" and len(self.held) == len(self.at):
            return 0
        slot = super().acquire_slot(adapter)
        if self.fault == "keeps old weights" and slot is not None and before[slot] not in (None, adapter[0]):
            for path, (table, rows) in self.tables.items():
                table[slot, rows] *= 1.5 if path else 1.0
        return slot

    def describe(self, adapter: Any) -> Any:
        if self.fault == "describes with a dict":
            return {"num_bytes": 1}
        about = super().describe(adapter)
        if self.fault.startswith("keys"):
            return replace(about, has_virtual_kv=True, virtual_tokens=0 if self.fault == "keys of no tokens" else 3)
        return replace(about, virtual_tokens=-1) if self.fault == "fewer than none" else about


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_adapter(root / str(seed), "SCALE", seed) for seed in (1, 2)]


def record(fault: str) -> AdapterRuntime:
    return AdapterRuntime("scale", frozenset({"SCALE"}), partial(Faulty, fault))


def test_a_correct_runtime_passes(model: Path, adapters: list[Path]) -> None:
    check_adapter_runtime(record(""), adapters, model)


@pytest.mark.parametrize(("kind", "width"), [("PROMPT_TUNING", 64), ("PREFIX_TUNING", 128)])
def test_a_correct_runtime_of_virtual_tokens_passes(kind: str, width: int, model: Path, tmp_path: Path) -> None:
    (found,) = load(["prompt-tuning"]).by_hook("quire_adapter_runtimes").values()
    for count in (3, 20):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "num_virtual_tokens": count}))
        rows = torch.randn(count, width, generator=torch.Generator().manual_seed(count))
        save_file({"prompt_embeddings": rows}, folder / "adapter_model.safetensors")
    check_adapter_runtime(found, [tmp_path / "3", tmp_path / "20"], model)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("changes nothing", "changes no logits"),
        ("changes every row", "Rows without an adapter have other logits beside rows that do"),
        ("never full", "must return None when all slots are in use"),
        ("keeps old weights", "other logits in another's slot"),
        ("loads anything", "must raise BadRequest for a folder without weights"),
        ("raises anything", "must raise BadRequest for a folder without weights; got"),
        ("describes with a dict", "must return AdapterMetadata"),
        ("fewer than none", "virtual_tokens must be a number of tokens; got -1"),
        ("keys of no tokens", "virtual_tokens must be above 0"),
        ("keys that are not stored", "must have the method store_virtual"),
    ],
)
def test_a_faulty_runtime_is_noticed(model: Path, adapters: list[Path], fault: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_adapter_runtime(record(fault), adapters, model)


def test_sources_find_what_is_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text("{}")
    numbers = iter(range(100))

    def find(name: str) -> AdapterSource | None:
        return AdapterSource(tmp_path / name, "1") if (tmp_path / name).is_dir() else None

    check_adapter_source(find, ["mine"])
    for wrong, sentence in (
        (lambda name: AdapterSource(tmp_path / "mine", "1"), "is no adapter; got"),
        (lambda name, options: None, "must be found"),
        (lambda name: AdapterSource(tmp_path, "1"), "has no adapter_config.json"),
        (lambda name: AdapterSource(tmp_path / "mine", str(next(numbers))), "as another revision"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            check_adapter_source(wrong, ["mine"])
