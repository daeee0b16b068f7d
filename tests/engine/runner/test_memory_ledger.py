"""The account of host memory: what models reserve together, what limits the process, what is refused."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from engine_rig import rig_of

from quire.engine.memory import system_memory
from quire.engine.memory.ledger import KV_SHARE, MAX_KV_BYTES, MemoryLedger, MemoryUse, check_fits
from quire.errors import ConfigError
from quire_testing.tiny import tiny_llama

GIB = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


class Model:
    """What a ledger counts."""


def kv_sizes(ledger: MemoryLedger, count: int, at_most: int = MAX_KV_BYTES) -> list[tuple[Model, int]]:
    """Load `count` models together that use at most so many bytes for their KV cache."""
    made = []
    for left in range(count, 0, -1):
        model, size = Model(), min(ledger.budget(left).kv_cache, at_most)
        ledger.enter(model, f"m{left}", MemoryUse(weights=1 << 20, kv_cache=size))
        made.append((model, size))
    return made


@pytest.mark.parametrize("count", [1, 2, 15, 200])
def test_models_that_are_loaded_together_take_one_share_for_their_kv_caches(count: int) -> None:
    made = kv_sizes(MemoryLedger(23 * GIB), count)
    assert sum(size for _, size in made) <= KV_SHARE * 23 * GIB
    assert max(size for _, size in made) <= MAX_KV_BYTES


def test_what_small_models_do_not_use_is_left_to_the_others() -> None:
    ledger, small = MemoryLedger(8 * GIB), Model()
    assert ledger.budget(2).kv_cache == GIB
    ledger.enter(small, "small", MemoryUse(weights=0, kv_cache=GIB // 8))
    assert ledger.budget(1).kv_cache == 2 * GIB - GIB // 8


def test_a_model_that_comes_later_gets_a_share_of_what_is_left() -> None:
    ledger = MemoryLedger(8 * GIB)
    first = Model()
    ledger.budget(1)
    ledger.enter(first, "first", MemoryUse(weights=2 * GIB, kv_cache=2 * GIB))
    assert ledger.budget(1).kv_cache == GIB
    assert ledger.budget(1).total == 4 * GIB


def test_a_model_that_is_freed_leaves_the_account() -> None:
    ledger, model = MemoryLedger(8 * GIB), Model()
    ledger.enter(model, "gone", MemoryUse(weights=GIB))
    del model
    assert ledger.reserved == 0


def test_the_table_names_each_model_and_the_sum() -> None:
    ledger, model = MemoryLedger(8 * GIB), Model()
    ledger.enter(model, "demo", MemoryUse(weights=GIB, kv_cache=2 * GIB, swap=GIB))
    head, row, together = ledger.table().splitlines()
    assert head.split() == ["model", "weights", "KV", "cache", "swap", "encoder", "total"]
    assert row.split() == ["demo", "1.00", "GiB", "2.00", "GiB", "1.00", "GiB", "0.0", "MiB", "4.00", "GiB"]
    assert together == "together 4.00 GiB of the 8.00 GiB that were free"


def test_what_cannot_fit_is_refused_with_its_numbers() -> None:
    with pytest.raises(
        ConfigError, match=r"KV cache 900\.00 GiB.*but 20\.00 GiB are left: lower --kv-cache-memory-byt"
    ):
        check_fits("demo", MemoryUse(weights=GIB, kv_cache=900 * GIB), 20 * GIB)


def test_a_kv_cache_larger_than_the_machine_is_refused_before_it_is_allocated(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"), rig_of(folder, num_pages=1 << 40):
        pass


def test_an_engine_says_what_it_has_reserved(folder: Path) -> None:
    with rig_of(folder, num_pages=16) as rig:
        use = rig.engine.memory
        pool = rig.engine._runner.kv
        assert use.kv_cache == sum(t.numel() * t.element_size() for t in pool.k + pool.v)
        assert use.weights >= 4 * rig.engine.info.num_parameters


def fake_system(tmp_path: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc, groups


def test_the_smallest_cgroup_around_the_process_counts(tmp_path: Path) -> None:
    files = {
        "pod/memory.max": str(2 * GIB),
        "pod/memory.current": str(GIB),
        "pod/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
        "pod/app/memory.max": "max",
        "pod/app/memory.current": str(GIB),
        "pod/app/memory.stat": "inactive_file 0\n",
    }
    system = fake_system(tmp_path, "0::/pod/app\n", files)
    assert system_memory.free_bytes(*system) == 3 * GIB // 2
    assert system_memory.total_bytes(*system) == 2 * GIB


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    files = {"memory.max": str(GIB), "memory.current": str(GIB // 4), "memory.stat": "inactive_file 0\n"}
    assert system_memory.free_bytes(*fake_system(tmp_path, "0::/not/visible\n", files)) == 3 * GIB // 4


def test_the_first_version_of_cgroups_counts_too(tmp_path: Path) -> None:
    files = {
        "memory/pod/memory.limit_in_bytes": str(3 * GIB),
        "memory/pod/memory.usage_in_bytes": str(GIB),
        "memory/pod/memory.stat": "total_inactive_file 0\n",
        "memory/memory.limit_in_bytes": str(2**63 - 4096),
        "memory/memory.usage_in_bytes": "1",
        "memory/memory.stat": "",
    }
    assert system_memory.free_bytes(*fake_system(tmp_path, "5:cpu,memory:/pod\n1:name=x:/\n", files)) == 2 * GIB


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    system = fake_system(tmp_path, "0::/\n", {})
    assert (system_memory.free_bytes(*system), system_memory.total_bytes(*system)) == (8 * GIB, 16 * GIB)


def test_a_limit_on_the_address_space_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 20, 1 << 20))
    assert system_memory.free_bytes() == 0
    assert system_memory.total_bytes() == 1 << 20


BLOCKS = """
import resource
from quire.server.process.allocator import return_freed_memory
return_freed_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = resident()
for size in (33 << 20, 2 << 20):  # the first would raise the threshold for the others
    blocks = [bytes(size) for _ in range(8)]
    wall = bytes(1 << 16)  # what stays behind them
    del blocks
print(resident() - before)
"""


def test_large_blocks_go_back_to_the_system() -> None:
    run = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2 << 20


def test_ranks_of_a_machine_share_its_memory_and_plan_caches_of_it_alike():
    whole = MemoryLedger(1000).budget()
    part = whole.part_of_ranks(2)
    assert (part.total, part.kv_cache, part.max_kv_cache) == (500, whole.kv_cache // 2, whole.max_kv_cache // 2)
    assert part.kv_part == whole.kv_part > 0
