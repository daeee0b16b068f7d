"""Adapters made to do harm: what reads them may be ended, and is; nothing else waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from adapter_fixture import benches_in
from hostile_folders import HOSTILE, piped
from lora_rig import Base, Ours

from quire import files
from quire.errors import BadRequest, Overloaded
from quire.hooks.adapter_resolver import AdapterResolver, base_of
from quire.isolation.isolated_calls import IsolatedCalls
from quire.isolation.plugin_calls import SharedBytes
from quire.isolation.process_pool import ProcessPool
from quire.records import Registry
from quire.settings.server_config import ServerConfig


@pytest.fixture(scope="module")
def apart() -> Iterator[IsolatedCalls]:
    calls = IsolatedCalls(60.0)
    yield calls
    calls.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("hostile") / "base", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def ours(base: Base, apart: IsolatedCalls) -> Ours:
    return Ours(base, max_rank=16, apart=apart)


def good(base: Base, name: str) -> Path:
    return base.adapter(name.replace(" ", "-").replace("'", ""), r=4, target_modules=["q_proj", "up_proj"])


# --- one after another ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_adapter_is_refused_with_the_reason(base: Base, ours: Ours, what: str) -> None:
    (spoil, said), folder = HOSTILE[what], good(base, what)
    spoil(folder)
    with pytest.raises(BadRequest) as found:
        ours.lora.load("x", folder)
    assert said in found.value.message
    assert str(folder) not in found.value.message, "where it lies is not said"


def test_after_all_that_a_good_one_loads(base: Base, ours: Ours) -> None:
    assert ours.lora.load("x", good(base, "good")).metadata.rank == 4


def test_the_largest_change_that_is_taken_in_still_gives_numbers(base: Base, ours: Ours) -> None:
    loud = ours.lora.load(
        "x", base.adapter("loud", like=120.0, r=4, lora_alpha=64, target_modules=["q_proj", "up_proj"])
    )
    (logits,) = ours.logits([[1, 2, 3]], [{loud: 1.0}])
    assert logits.isfinite().all()


# --- the process ------------------------------------------------------------------------------------------


def test_a_call_that_does_not_end_is_ended() -> None:
    calls = IsolatedCalls(0.5)
    with pytest.raises(BadRequest, match=r"took longer than 0\.5 s and was stopped \(--lora-load-timeout-s\)"):
        calls(time.sleep, 600)
    calls.close()


def test_a_call_that_ends_its_process_is_an_error_and_the_next_has_another(apart: IsolatedCalls) -> None:
    before = apart(os.getpid)
    with pytest.raises(BadRequest, match="ended the process that did it"):
        apart(os._exit, 0)
    assert apart(os.getpid) not in (before, os.getpid())


def test_a_call_that_wants_too_much_memory_is_refused(apart: IsolatedCalls) -> None:
    with pytest.raises(BadRequest, match="too much memory"):
        apart(bytearray, 1 << 42)


@pytest.mark.usefixtures("fresh_processes")
def test_what_reads_files_has_no_secrets(apart: IsolatedCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    calls = IsolatedCalls(60.0)
    assert calls(os.getenv, "HF_TOKEN") is None
    calls.close()


def test_closing_ends_calls_that_are_under_way() -> None:
    calls = IsolatedCalls(600.0)
    with ThreadPoolExecutor(1) as thread:
        sleeping = thread.submit(calls, time.sleep, 600)
        calls.close()
        with pytest.raises(Overloaded, match="closing"):
            sleeping.result()


def test_models_share_processes_and_closing_one_ends_only_its_own_calls() -> None:
    pool = ProcessPool()
    first, second = IsolatedCalls(600.0, pool=pool), IsolatedCalls(600.0, pool=pool)
    first.prepare(os.getpid)
    process = first(os.getpid)
    assert second(os.getpid) == process
    with ThreadPoolExecutor(1) as thread:
        sleeping = thread.submit(first, time.sleep, 600)
        first.close()
        with pytest.raises(Overloaded, match="closing"):
            sleeping.result()
    assert second(os.getpid) != os.getpid()
    pool.close()
    with pytest.raises(Overloaded, match="closing"):
        second(os.getpid)


def test_memory_that_may_still_change_is_not_looked_at() -> None:
    memory = SharedBytes.create()
    memory.append(b"abc")
    with pytest.raises(OSError, match="may still change"):
        memory.map()
    sealed = SharedBytes.create()
    sealed.append(b"abc")
    sealed.seal()
    assert bytes(sealed.map()) == b"abc"


# --- beside others ----------------------------------------------------------------------------------------


def test_unloading_waits_for_no_reader(tmp_path: Path) -> None:
    with benches_in(tmp_path) as make:
        bench = make()
        bench.load("a")
        hold = threading.Event()
        for name in ("slow", "slower"):  # as many as there are readers
            bench.runtime.held_back[name] = hold
            bench.adapters.registry.load(name, bench.folder(name))
            bench.runtime.wait_for(f"load {name}", 1)
        bench.adapters.registry.unload("a").result(60)
        assert "a" not in bench.states()
        hold.set()
        bench.settle()


def test_a_pipe_in_the_place_of_a_config_says_no_model(base: Base) -> None:
    folder = good(base, "piped for base_of")
    piped("adapter_config.json")(folder)
    assert base_of(folder, {"one": ["one"], "two": ["two"]}) is None


# --- where they may lie -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "roots"),
    [
        ({}, None),
        ({"host": "localhost"}, None),
        ({"host": "::1"}, None),
        ({"host": "0.0.0.0"}, ()),
        ({"host": ""}, ()),
        ({"host": "example.org", "api_key": ("key",)}, ()),
        ({"host": "0.0.0.0", "admin_api_key": ("key",)}, None),
        ({"host": "0.0.0.0", "lora_root": ("/a",)}, ("/a",)),
        ({"lora_root": ("/a",), "admin_api_key": ("key",)}, ("/a",)),
    ],
)
def test_any_folder_will_do_only_where_the_client_is_trusted(
    settings: dict[str, object], roots: tuple[str, ...] | None
) -> None:
    assert ServerConfig(**settings).adapter_roots == roots  # type: ignore[arg-type]


def test_what_lies_outside_the_roots_is_not_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    said = set()
    for path in ("/etc", "/nonexistent", "/proc/1", str(tmp_path / "closed" / "x"), "\0", "~no-such-user/x"):
        with pytest.raises(BadRequest) as found:
            AdapterResolver(Registry(), tmp_path, [str(tmp_path / "root")]).folder(path)
        said.add(found.value.message.removeprefix(path))
    assert len(said) == 1
    with pytest.raises(BadRequest, match="loads no adapters by path"):
        AdapterResolver(Registry(), tmp_path, ()).folder("/etc")


def test_what_is_no_adapter_is_not_there(tmp_path: Path) -> None:
    anywhere = AdapterResolver(Registry(), tmp_path)
    assert [anywhere.folder(path) for path in ("/etc", "/nonexistent", "/proc/1", "/root", "\0")] == [None] * 5


def test_a_link_within_the_cache_of_a_hub_is_followed_and_none_beyond(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "c0ffee", tmp_path / "models--a--b" / "blobs"
    for folder in (snapshot / "1_Pooling", blobs):
        folder.mkdir(parents=True)
    (blobs / "1").write_text("{}")
    (snapshot / "config.json").symlink_to(Path("..", "..", "blobs", "1"))
    (snapshot / "1_Pooling" / "config.json").symlink_to(Path("..", "..", "..", "blobs", "1"))
    assert files.read_json(snapshot / "config.json") == files.read_json(snapshot / "1_Pooling" / "config.json") == {}
    (tmp_path / "other.json").write_text("{}")
    (snapshot / "other.json").symlink_to(tmp_path / "other.json")
    with pytest.raises(files.FileRefused, match="leads out of its folder"):
        files.read_json(snapshot / "other.json")
