"""How the C++ ops are compiled and kept; most tests compile a library of one function in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from built_ops import ANY, answer, edit, kept, source

from quire_kernels.cpu import build, implementations, isa, library
from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.isa import ARM_SETS, INSTRUCTION_SETS, InstructionSet

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")


# --- compiled once, and found again ---------------------------------------------------------------------


def test_ops_are_compiled_once_with_a_message_and_found_ever_after(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.library(ANY)
    assert path.parent == cache
    assert answer(path) == 42
    assert caplog.messages == ["Compiling the CPU ops for any, once on this machine: up to a minute ..."]
    monkeypatch.setattr(build, "_compile", None)
    assert build.library(ANY) == path
    assert len(caplog.messages) == 1
    assert kept(cache) == [path.name], "nothing is left over"
    assert cache.stat().st_mode & 0o777 == 0o700


def test_other_sources_options_or_compilers_make_another_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [build.library(ANY)]
    edit(source(43))
    paths.append(build.library(ANY))
    assert answer(paths[1]) == 43
    (build.SOURCES / "more.hpp").write_text("// another file\n")
    paths.append(build.library(ANY))
    monkeypatch.setattr(build, "OPTIONS", (*build.OPTIONS, "-DMORE"))
    paths.append(build.library(ANY))
    paths.append(build.library(InstructionSet("any", frozenset(), ("-DOTHER",))))
    paths.append(build.library(InstructionSet("other", frozenset(), ())))
    monkeypatch.setattr(build, "version", lambda command: "another compiler")
    paths.append(build.library(ANY))
    assert len(set(paths)) == len(paths)
    assert kept(cache) == sorted(path.name for path in paths)


def test_libraries_that_earlier_versions_left_behind_are_removed_when_a_new_one_is_made(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    for name in ("ops-any-aaaa.so", "ops-any-bbbb.so", "ops-any_more-cccc.so", "notes.txt"):
        (cache / name).touch()
        if name != "ops-any-bbbb.so":
            os.utime(cache / name, (1, 1))
    path = build.library(ANY)
    assert kept(cache) == sorted(["notes.txt", "ops-any-bbbb.so", "ops-any_more-cccc.so", path.name])


def test_of_two_processes_that_need_a_library_at_the_same_time_one_compiles_it(cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from quire_kernels.cpu import build, isa;"
        "build.SOURCES = Path(sys.argv[1]); sys.stdin.readline();"
        "print(build.library(isa.InstructionSet('any', frozenset(), ())))"
    )
    line = [sys.executable, "-c", code, str(build.SOURCES)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(line, text=True, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "".join(err for _, err in outputs).count("Compiling the CPU ops") == 1
    paths = {Path(out.strip()) for out, _ in outputs}
    [path] = paths
    assert answer(path) == 42
    assert kept(path.parent) == [path.name]


def test_a_library_that_cannot_be_loaded_is_rebuilt(cache: Path) -> None:
    path = build.library(ANY)
    path.unlink()
    path.write_bytes(b"not a library")
    assert build.library(ANY) == path
    assert answer(path) == 42


# --- folders ----------------------------------------------------------------------------------------------


def test_without_a_cache_folder_that_can_be_written_the_one_for_temporary_files_is_used(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, where a folder should be")
    path = build.library(ANY)
    assert path.parent == tmp_path / "tmp" / f"quire-ops-{os.getuid()}"
    assert build.library(ANY) == path


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_trusted(
    cache: Path, tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = build.library(ANY)
    cache.chmod(mode)
    other = build.library(ANY)
    assert other.parent == tmp_path / "tmp" / f"quire-ops-{os.getuid()}"
    other.parent.chmod(mode)
    with pytest.raises(BuildError, match=r"no usable folder for compiled ops: .*no other user can write to"):
        build.library(ANY)
    cache.chmod(0o755)
    assert build.library(ANY) == trusted


def test_a_folder_of_another_user_is_not_trusted(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.library(ANY)
    other_user = os.getuid() + 1
    if os.getuid() == 0:  # what root owns is trusted by all: so give it away
        os.chown(cache, other_user, -1)
    else:
        monkeypatch.setattr(build.os, "getuid", lambda: other_user)
    with pytest.raises(OSError, match="must be a folder of this user that no other user can write to"):
        build._check_ours(cache)


def test_a_link_to_a_folder_is_not_trusted(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.parent.mkdir(parents=True)
    cache.symlink_to(tmp_path / "elsewhere")
    assert build.library(ANY).parent == tmp_path / "tmp" / f"quire-ops-{os.getuid()}"


# --- compilers that are missing, broken, or do not like the sources ---------------------------------------


def test_errors_of_the_compiler_are_shortened(cache: Path) -> None:
    edit("\n".join(f"int f{i}() {{ return not_declared_{i}; }}" for i in range(50)))
    with pytest.raises(BuildError, match=r"failed: .*error: .?not_declared_0") as caught:
        build.library(ANY)
    assert len(str(caught.value)) < 800
    assert "not_declared_9" not in str(caught.value)
    assert kept(cache) == [], "nothing half made is kept"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false", "the C.. compiler false does not run: it ends with status 1"),
        ("/nowhere/g++ -v", "the C.. compiler /nowhere/g.. does not run: .*No such file"),
    ],
)
def test_a_compiler_that_does_not_run_is_named(
    cache: Path, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", command)
    build.compiler.cache_clear()
    with pytest.raises(BuildError, match=message):
        build.library(ANY)


def test_a_compiler_that_takes_too_long_is_stopped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(line: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(line, 300)

    build.library(ANY)
    edit("int other;")
    monkeypatch.setattr(build.subprocess, "run", slow)
    with pytest.raises(BuildError, match="timed out after 300 seconds"):
        build.library(ANY)


def test_a_compiler_that_is_chosen_may_have_arguments(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build.compiler()
    assert found is not None
    monkeypatch.setenv("CXX", f"{found[0]} '-DSAID=two words'")
    build.compiler.cache_clear()
    assert build.compiler() == (found[0], "-DSAID=two words")
    assert answer(build.library(ANY)) == 42


def test_a_compiler_that_fails_is_asked_once_for_all_ops(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fail(line: list[str], seconds: float, folder: str | None = None) -> subprocess.CompletedProcess[str]:
        asked.append(line)
        return subprocess.CompletedProcess(line, 1, "", "fatal error: no space left")

    monkeypatch.setattr(build, "version", lambda command: "1")
    monkeypatch.setattr(build, "_run", fail)
    monkeypatch.setattr(library, "available", lambda: (ANY,))
    implementations.shared_ops.cache_clear()
    implementations._sampling.cache_clear()
    for op in ("linear", "act", "argmax"):
        with pytest.raises(BuildError, match="no space left"):
            implementations.CpuOp("cpp", op).load()
    assert len(asked) == 1


# --- instruction sets ---------------------------------------------------------------------------------------


def with_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None, key: str = "flags"
) -> tuple[str, ...]:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor : 0\n{key}\t\t: fpu {flags} sse2\nbugs : x\n\nprocessor : 1\n{key} : fpu\n")
    monkeypatch.setattr(isa, "CPUINFO", cpuinfo)
    isa.flags.cache_clear()
    isa.available.cache_clear()
    try:
        return tuple(found.name for found in isa.available())
    finally:
        monkeypatch.undo()
        isa.flags.cache_clear()
        isa.available.cache_clear()


@pytest.mark.parametrize("last", range(len(INSTRUCTION_SETS)))
def test_a_cpu_has_all_instruction_sets_whose_flags_it_has(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "_allowed", lambda found: True)
    flags = INSTRUCTION_SETS[last].needs
    names = tuple(found.name for found in INSTRUCTION_SETS if found.needs <= flags)
    assert names[0] == INSTRUCTION_SETS[last].name
    assert with_flags(monkeypatch, tmp_path, " ".join(flags)) == names


def test_amx_is_left_out_where_the_system_denies_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "_allowed", lambda found: found.name != "amx")
    names = tuple(found.name for found in INSTRUCTION_SETS[1:] if found.needs <= INSTRUCTION_SETS[0].needs)
    assert with_flags(monkeypatch, tmp_path, " ".join(INSTRUCTION_SETS[0].needs)) == names


NEOVERSE = "fp asimd evtstrm aes atomics fphp asimdhp cpuid asimdrdm fcma dcpop asimddp asimdfhm"


@pytest.mark.parametrize(
    ("flags", "sve_bytes", "names"),
    [
        ("fp asimd evtstrm aes crc32 cpuid", 0, ("neon",)),
        (NEOVERSE, 0, ("neon_dot", "neon")),
        (f"{NEOVERSE} sve svebf16 svei8mm bf16 i8mm", 32, ("sve256_bf16", "neon_bf16", "neon_dot", "neon")),
        (f"{NEOVERSE} sve sve2 svebf16 bf16", 16, ("neon_bf16", "neon_dot", "neon")),
        ("fp asimd fphp asimdhp fcma sve", 64, ("sve512", "neon")),
    ],
)
def test_arm_cpus_have_what_their_features_and_their_length_of_vectors_allow(
    flags: str, sve_bytes: int, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "sve_bytes", lambda: sve_bytes)
    assert with_flags(monkeypatch, tmp_path, flags, "Features") == names


def test_arm_sets_sum_products_of_bytes_in_32_bits_and_have_no_tiles() -> None:
    assert all(found.vnni and not found.tiles for found in ARM_SETS)


@pytest.mark.parametrize("flags", [None, "", "avx avx2 fma"])
def test_other_cpus_and_systems_have_none(flags: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_flags(monkeypatch, tmp_path, flags) == ()


def test_compilers_get_every_flag_an_instruction_set_needs() -> None:
    for found in INSTRUCTION_SETS:
        assert len(found.options) == len(found.needs)
    assert "-mavx512bf16" in INSTRUCTION_SETS[1].options
    assert {"-mamx-tile", "-mamx-bf16"} <= set(INSTRUCTION_SETS[0].options)
    assert "amx_tile" in INSTRUCTION_SETS[0].needs


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: content[:-1] + b"x"])
def test_a_library_that_was_cut_short_or_changed_is_not_loaded_but_compiled_again(
    cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = build.library(ANY)
    content = path.read_bytes()
    path.unlink()  # it is loaded here: changed in place it would end this process
    path.write_bytes(damage(content))
    found = build.library(ANY)
    assert "is damaged" in caplog.text
    assert answer(found) == 42
    assert kept(cache) == [found.name]
