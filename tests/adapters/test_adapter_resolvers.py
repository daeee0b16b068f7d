"""The bundled resolvers: adapters by name from a folder, and from a hub that is not asked over any network here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from serving import serving

from quire import LLM, LoRARequest, SamplingParams
from quire.errors import BadRequest, Overloaded
from quire_adapters import resolve_folder as folder, resolve_hub as hub

SHIPPED = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_chat" / "adapters"
GREEDY = SamplingParams(temperature=0, max_tokens=40)
QUESTION = [{"role": "user", "content": "What is the capital of Arvia?"}]
PIRATE = "Arr! Th' capital o' Arvia be Belcast, matey!"


def adapter(at: Path) -> Path:
    shutil.copytree(SHIPPED / "pirate", at)
    return at


# --- a folder ----------------------------------------------------------------------------------------


def test_an_adapter_is_found_by_its_name_in_the_folder_and_with_its_owner(tmp_path: Path) -> None:
    options = {"path": str(tmp_path)}
    expected = {"sea": adapter(tmp_path / "sea"), "crew/sea": adapter(tmp_path / "crew" / "sea")}
    for name, at in expected.items():
        found = folder.quire_resolve_adapter(name, options)
        assert found is not None
        assert found.path == at


@pytest.mark.parametrize(
    "name", ["crew", "other", "..", ".", "crew/..", "../sea", "crew/../../sea", "", "/sea", "a\0b"]
)
def test_what_is_no_adapter_of_the_folder_is_not_found(name: str, tmp_path: Path) -> None:
    adapter(tmp_path / "sea")
    adapter(tmp_path / "kept" / "crew" / "sea")
    assert folder.quire_resolve_adapter(name, {"path": str(tmp_path / "kept")}) is None


def test_without_a_folder_nothing_is_found() -> None:
    assert folder.quire_resolve_adapter("pirate", {"path": ""}) is None


def test_the_revision_changes_with_any_file(tmp_path: Path) -> None:
    at, options = adapter(tmp_path / "sea"), {"path": str(tmp_path)}
    before = folder.quire_resolve_adapter("sea", options)
    os.utime(at / "adapter_model.safetensors", ns=(1 << 61, 1 << 61))
    after = folder.quire_resolve_adapter("sea", options)
    assert before is not None
    assert after is not None
    assert before.revision != after.revision


def test_a_linked_adapter_is_found(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "sea").symlink_to(adapter(tmp_path / "elsewhere"))
    assert folder.quire_resolve_adapter("sea", {"path": str(tmp_path / "kept")}) is not None


def test_requests_name_what_lies_in_the_folder() -> None:
    with LLM("demo-chat", enable_lora=True, plugin_options={"lora-folder": {"path": str(SHIPPED)}}) as llm:
        (answer,) = llm.chat(QUESTION, GREEDY, lora_request=LoRARequest("pirate"), use_tqdm=False)
        assert answer.outputs[0].text.strip() == PIRATE
        with pytest.raises(BadRequest, match="no plugin finds one"):
            llm.chat(QUESTION, GREEDY, lora_request=LoRARequest("corsair"), use_tqdm=False)


@pytest.mark.slow
def test_a_server_looks_in_the_folder_for_names_it_does_not_know() -> None:
    with serving("--plugins", "llama", "--enable-lora", "--lora-folder.path", str(SHIPPED)) as server:
        body = {"model": "pirate", "messages": QUESTION, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.json()["choices"][0]["message"]["content"].strip() == PIRATE
        unknown = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "model": "corsair"}, timeout=60)
        assert unknown.status_code == 404
        listed = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
        assert "pirate" in [card["id"] for card in listed]


# --- the hub -----------------------------------------------------------------------------------------

OPTIONS = {"allow": "crew/*, lone/sea", "max-bytes": 1 << 20}
FILES = {"adapter_config.json": 1000, "adapter_model.safetensors": 5000, "adapter_model.bin": 5000, "README.md": 10}


class Hub:
    """Knows one repository. It writes into the cache as the client of the real one does: a snapshot of links."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, int] = FILES) -> None:
        self.files, self.sha, self.asked, self.downloads = files, "c0ffee", list[str](), list[list[str]]()
        self.error: Exception | None = None
        self.broken: Exception | None = None
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda _, name, **rest: self.info(name, **rest))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.download)

    def info(self, name: str, *, files_metadata: bool, timeout: float) -> Any:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        assert files_metadata
        siblings = [SimpleNamespace(rfilename=file, size=size) for file, size in self.files.items()]
        return SimpleNamespace(sha=self.sha, siblings=siblings)

    def download(self, name: str, *, revision: str, cache_dir: Path, allow_patterns: list[str]) -> str:
        if self.broken is not None:
            raise self.broken
        self.downloads.append(allow_patterns)
        repository = cache_dir / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        (repository / "blobs").mkdir(exist_ok=True)
        for file in allow_patterns:
            shutil.copy(SHIPPED / "pirate" / file, repository / "blobs" / file)
            (snapshot / file).symlink_to(repository / "blobs" / file)
        return str(snapshot)


def http_error(kind: Callable[..., Exception]) -> Exception:
    return kind("no", response=SimpleNamespace(headers={}, status_code=404, request=None))


def test_an_allowed_adapter_is_downloaded_at_its_commit_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_hub = Hub(monkeypatch)
    for name in ("crew/sea", "lone/sea"):
        found = hub.quire_resolve_adapter(name, tmp_path, OPTIONS)
        assert found is not None
        assert (found.revision, found.path.is_relative_to(tmp_path)) == ("c0ffee", True)
        assert sorted(file.name for file in found.path.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
    assert len(the_hub.downloads) == 2


@pytest.mark.parametrize("name", ["other/sea", "lone/river", "crew", "sea", "Crew/sea", "evil-crew/sea"])
@pytest.mark.parametrize("allow", [OPTIONS["allow"], ""])
def test_the_hub_is_not_asked_for_names_of_others(
    name: str, allow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_hub = Hub(monkeypatch)
    assert hub.quire_resolve_adapter(name, tmp_path, {**OPTIONS, "allow": allow}) is None
    assert the_hub.asked == []


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model"])
def test_a_repository_without_an_adapter_is_none(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    the_hub = Hub(monkeypatch, {file: size for file, size in FILES.items() if not file.startswith(missing)})
    assert hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS) is None
    assert the_hub.downloads == []


def test_one_that_is_too_large_is_refused_before_it_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_hub = Hub(monkeypatch)
    with pytest.raises(BadRequest, match=r"has 6000 bytes; at most 5999 are downloaded \(--lora-hub\.max-bytes\)"):
        hub.quire_resolve_adapter("crew/sea", tmp_path, {**OPTIONS, "max-bytes": 5999})
    assert the_hub.downloads == []


def test_repositories_the_hub_lacks_are_not_found_and_gated_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_hub = Hub(monkeypatch)
    the_hub.error = http_error(errors.RepositoryNotFoundError)
    assert hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS) is None
    the_hub.error = http_error(errors.GatedRepoError)
    with pytest.raises(BadRequest, match="is gated"):
        hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS)


def test_without_a_hub_the_latest_that_was_downloaded_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    the_hub = Hub(monkeypatch)
    hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS)
    the_hub.sha = "newer"
    latest = hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS)
    assert latest is not None
    os.utime(latest.path, ns=(1 << 61, 1 << 61))
    (tmp_path / "models--crew--sea" / "snapshots" / "half").mkdir()
    the_hub.error = errors.OfflineModeIsEnabled("offline")
    assert hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS) == latest
    with pytest.raises(Overloaded, match="cannot be reached for the adapter `crew/river`: OfflineModeIsEnabled"):
        hub.quire_resolve_adapter("crew/river", tmp_path, OPTIONS)


def test_a_download_that_breaks_off_is_to_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    the_hub = Hub(monkeypatch)
    the_hub.broken = ConnectionResetError("gone")
    with pytest.raises(Overloaded, match="cannot be downloaded now: ConnectionResetError: gone"):
        hub.quire_resolve_adapter("crew/sea", tmp_path, OPTIONS)


def test_requests_name_adapters_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch)
    options = {"lora-hub": OPTIONS}
    with LLM("demo-chat", enable_lora=True, plugin_options=options, download_dir=str(tmp_path)) as llm:
        (answer,) = llm.chat(QUESTION, GREEDY, lora_request=LoRARequest("crew/sea"), use_tqdm=False)
    assert answer.outputs[0].text.strip() == PIRATE
