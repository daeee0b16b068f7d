"""Full disks: a small one in memory (needs root) takes compiled operations, results, logs and temporary files.

    python tests/attack/bombs/disk.py

Prints attack, result and verdict; exit status 1 if one fails. Compiling takes about a minute. Adapters on a full disk:
`files.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

import httpx
from serving import Server, command, free_port

ROOT = Path(__file__).parents[3]
PIRATE = ROOT / "plugins" / "quire_demos" / "demo_chat" / "adapters" / "pirate"
BUILD = "from quire_kernels.cpu import build, isa; print(build.library(isa.INSTRUCTION_SETS[-1]))"
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1"}
failed: list[str] = []


def row(attack: str, result: str, good: bool) -> None:
    print(f"| {attack} | {result.replace('|', '/')[-150:]} | {'holds' if good else 'FAIL'} |", flush=True)
    failed.extend([] if good else [attack])


@contextmanager
def mounted(folder: Path, full: bool = True) -> Iterator[Path]:
    """A disk of 1 MiB, filled unless `full` is false."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    try:
        with suppress(OSError):
            if full:
                (folder / "filling").write_bytes(bytes(2 << 20))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def compiled(root: Path) -> None:
    other = root / "other"
    other.mkdir(mode=0o700)

    def build(cache: Path, temporary: Path) -> subprocess.CompletedProcess[str]:
        places = {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)}
        return subprocess.run(
            [sys.executable, "-c", BUILD], env={**ENVIRONMENT, **places}, capture_output=True, text=True, check=False
        )

    def left(disk: Path) -> list[str]:
        return [path.name for path in disk.rglob("*") if path.is_file() and path.name != "filling"]

    with mounted(root / "full") as disk:
        done = build(disk, other)
        good = done.stdout.startswith(str(other)) and not left(disk)
        row("compiled operations: the cache is full, TMPDIR is not", done.stdout.strip() or done.stderr, good)
    shutil.rmtree(other)
    with mounted(root / "small", full=False) as disk:
        done = build(disk, disk)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        good = "no usable folder" in last and "No space left" in last and not left(disk)
        row("compiled operations: cache and TMPDIR fill up", last, good)


def results(root: Path) -> None:
    lines = [
        {"custom_id": str(n), "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 4}} for n in range(20)
    ]
    source = root / "in.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))
    with mounted(root / "disk") as disk:
        (disk / "filling").write_bytes(bytes((1 << 20) - 2 * 4096))  # there is room for some lines
        target = disk / "out.jsonl"
        with suppress(OSError):
            (disk / "more").write_bytes(bytes(4096))
        words = command("run-batch", "-i", source, "-o", target, "--model", "demo-chat")
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        kept = target.read_text()
        whole = kept == "" or (kept.endswith("\n") and all(json.loads(line) for line in kept.splitlines()))
        good = done.returncode == 2 and "cannot be written" in last and whole
        row("run-batch: the results", f"{kept.count(chr(10))} whole lines; {last}", good)


def served(root: Path) -> None:
    with mounted(root / "logs") as disk, open(disk / "log", "w") as log:
        port = free_port()
        words = command("serve", "demo-chat", "--enable-lora", "--kv-cache-memory-bytes", "64M", "--port", port)
        places = {**ENVIRONMENT, "TMPDIR": str(disk)}
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=places)
        try:
            url = Server(process, port, disk / "log").wait_ready().url
            ask = {"model": "demo-chat", "prompt": "Once", "max_tokens": 8}
            adapter = {"lora_name": "pirate", "lora_path": str(PIRATE)}
            constraint = {"structured_outputs": {"regex": "[a-z]+"}}
            posts = [("completions", ask), ("load_lora_adapter", adapter), ("completions", {**ask, **constraint})]
            found = [httpx.post(f"{url}/v1/{path}", json=body, timeout=60).status_code for path, body in posts]
            process.terminate()
            row("the server's log and TMPDIR", f"{found}, ends with {process.wait(60)}", found == [200] * 3)
        except (RuntimeError, httpx.HTTPError) as error:
            row("the server's log and TMPDIR", repr(error), False)
        finally:
            process.kill()
            process.wait()


def main() -> int:
    print("| attack | result | verdict |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for attack in (served, results, compiled):
            attack(Path(folder))
    print(f"{len(failed)} fail: {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
