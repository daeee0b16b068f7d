"""Keys of pages: equal for equal content, whatever its name, and others for any other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, rig_of
from random_adapters import Kit, write_adapter
from tiered_rig import NUM_PAGES, PROMPT, asked, cached, kept

from quire.types import AdapterRef, Prompt, Request, WeightedAdapter
from quire_testing.tiny import tiny_llama

pytestmark = pytest.mark.usefixtures("patience")


@pytest.mark.parametrize(
    "change",
    [{"dtype": "bfloat16"}, {"kv_cache_dtype": "int8"}, {"page_size": 8}, {"quantization": "int8"}],
    ids=lambda change: next(iter(change)),
)
def test_pages_that_are_computed_otherwise_have_other_keys(
    model: Path, keys: tuple[str, ...], tmp_path: Path, change: dict[str, Any]
) -> None:
    with kept(model, kv_disk=str(tmp_path), **change) as rig:
        assert not set(keys_of(rig)) & set(keys)


def keys_of(rig: Rig) -> tuple[str, ...]:
    """The keys of the pages of the prompt."""
    assert rig.engine._tiers.flush(60)
    request = Request(id="r", prompt=Prompt(token_ids=tuple(PROMPT)), params=greedy())
    found = rig.engine._tiers._keys.of_prompt(request, 11)
    assert found is not None
    return tuple(found)


@pytest.fixture(scope="module")
def keys(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    with kept(model, kv_disk=str(tmp_path_factory.mktemp("keys"))) as rig:
        found = keys_of(rig)
    assert len(set(found)) == 11
    return found


def test_keys_are_of_the_content_of_a_checkpoint(model: Path, keys: tuple[str, ...], tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    with kept(copy, kv_disk=str(tmp_path / "kv"), num_pages=200, max_num_seqs=3) as rig:
        assert keys_of(rig) == keys
    shutil.copy(tiny_llama(tmp_path / "other", seed=1) / "model.safetensors", copy / "model.safetensors")
    with kept(copy, kv_disk=str(tmp_path / "kv")) as rig:
        assert not set(keys_of(rig)) & set(keys)


def test_an_adapter_whose_content_changes_under_its_name_never_gets_old_pages(model: Path, tmp_path: Path) -> None:
    first, second = (write_adapter(tmp_path / f"a{seed}", "SCALE", seed) for seed in (1, 2))
    folder = tmp_path / "adapter"
    with rig_of(model, Kit().registry, page_size=4, kv_disk=str(tmp_path / "kv")) as rig:

        def ask(name: str, **request: Any) -> tuple[list[int], int]:
            rig.engine.reset_prefix_cache()
            answer = asked(rig, adapters=(WeightedAdapter(AdapterRef(name=name)),), **request)
            return answer.token_ids, cached(answer)

        found = []
        for source in (first, second):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            rig.engine.load_adapter("x", folder, replacing=True)
            found.append(ask("x"))
            assert found[-1] == ask("x", cache_salt="of its own")
            assert found[-1][1] == 0
        assert found[0] != found[1]
        rig.engine.load_adapter("y", first)  # equal content under another name
        assert ask("y") == (found[0][0], NUM_PAGES * 4)
        assert ask("x") == (found[1][0], NUM_PAGES * 4)
        contents = rig.engine._tiers._keys._contents
        for ref, (revision, digest, seen) in contents.items():  # as if the files had changed before they were digested
            contents[ref] = (revision, digest, (*seen, ("other", 1, 1, 1)))
        assert ask("x") == (found[1][0], 0)
