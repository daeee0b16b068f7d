"""Files of audio, video and images that unpack to far more than they have, against a live server.

    python tests/attack/bombs/media.py [--cases WORD …]

A stream of tokens and /health run beside each. Prints a table: attack, size of the file, answer, seconds, the peak
memory of the API process and of its decoding processes, and the longest wait for /health. Exit status 1 if an answer is
neither 200 nor a 4xx, takes longer than the limits, or the memory of the API process grows by more than 1.5 GiB.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

from demos import Probe, form
from largest import Case
from media_bombs import AUDIO, IMAGES, VIDEO
from qwen_vl_rig import TWO, tiny
from serving import Server, serving
from stalls import sent

WITHIN_S, MAX_GROWTH = 40.0, 3 << 29
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
FLAGS = ("demo-chat", "demo-whisper", "--kv-cache-memory-bytes", "64M", "--disable-log-stats", "--disable-access-log")


def of_chat(name: str, kind: str, data: bytes) -> Case:
    url = f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"
    parts = [{"type": f"{kind}_url", f"{kind}_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    body = {"model": "film", "messages": [{"role": "user", "content": parts}], "max_tokens": 2}
    content = json.dumps(body).encode()
    return Case(name, "/v1/chat/completions", lambda: (content, "application/json"))


def cases(words: list[str]) -> Iterator[tuple[Case, int]]:
    for kind, bombs in (("audio", AUDIO), ("video", VIDEO), ("image", IMAGES)):
        for name, make in bombs.items():
            if words and not any(word in name for word in words):
                continue
            data = make()
            if kind == "audio":
                body = form(data, model="demo-whisper")
                yield Case(name, "/v1/audio/transcriptions", lambda body=body: body), len(data)
            else:
                yield of_chat(f"{kind}: {name}", kind, data), len(data)


class Memory:
    """The peak memory of the API process and of the processes in which it decodes."""

    def __init__(self, server: Server) -> None:
        self._pid = server.process.pid
        self.api = self.decoding = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.api = max(self.api, resident(self._pid))
            self.decoding = max(self.decoding, sum(map(resident, decoding_processes(self._pid))))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def decoding_processes(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task").glob("*/children")
    found: list[int] = []
    for file in children:
        try:
            found += [int(pid) for pid in file.read_text().split() if is_decoding(int(pid))]
        except OSError:
            continue
    return found


def is_decoding(pid: int) -> bool:
    try:
        return "isolated_process" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def attack(server: Server, probe: Probe, case: Case, size: int) -> bool:
    before, memory = resident(server.process.pid), Memory(server)
    probe.take()
    answer = asyncio.run(sent(server.port, case, 120))
    time.sleep(0.3)  # for what is freed, and for stalls, after the answer
    memory.end()
    late = probe.take()
    grown = memory.api - before
    good = (answer.status == 200 or 400 <= answer.status < 500) and answer.seconds < WITHIN_S and grown < MAX_GROWTH
    figures = f"{answer.seconds:.1f} s | +{grown >> 20} MiB | {memory.decoding >> 20} MiB | {late['health_ms']:.0f} ms"
    said = f"{answer.status} {message(answer.body)}".replace("|", "/")
    print(f"| {case.name} | {size} | {said} | {figures} | {'holds' if good else 'FAIL'} |", flush=True)
    return good


def message(body: bytes) -> str:
    try:
        return json.loads(body)["error"]["message"][:110]
    except (ValueError, KeyError, TypeError):
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[], help="words that the names of cases contain (default: all)")
    words = parser.parse_args().cases
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "film"
        tiny(TWO, folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        with serving(f"film={folder}", *FLAGS) as server:
            probe = Probe(server.port)
            time.sleep(3)
            print("| attack | bytes | answer | after | API process | decoding | /health | verdict |")
            print("|---|---|---|---|---|---|---|---|")
            good = [attack(server, probe, case, size) for case, size in cases(words)]
            probe.end()
            alive = server.process.poll() is None
    print(f"{good.count(False)} of {len(good)} fail; the server {'runs' if alive else 'has ended'}")
    return int(not all(good) or not alive)


if __name__ == "__main__":
    sys.exit(main())
