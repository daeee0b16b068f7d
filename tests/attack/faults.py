"""Faults of processes, done to a real server under load: kills, freezes, signals, restarts used up, plugins that hang.

    python tests/attack/faults.py --kills 20 --freeze-s 30

Prints a table of seconds and verdicts; the exit status is 1 if a verdict is FAIL. A verdict fails when a request never
ends, an answer is wrong, an error does not say why, or a process ends too late or with the wrong status.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from plugin_site import PluginSite
from serving import Server, serving

from quire.server.process.shutdown import GRACE_S
from quire_testing.tiny import tiny_llama

FLAGS = ("--dtype", "float32", "--num-pages", "2000", "--max-model-len", "512", "--disable-access-log")
PROMPTS = tuple(f"Once upon a time there were {n}" for n in range(8))
MAX_WAIT_S = 120.0
"""A request that takes longer is taken for one that never ends."""

HANGS = """
    import time

    @hookimpl
    def quire_request_finished(summary, options):
        time.sleep(600)

    @hookimpl
    def quire_engine_stopping(info, options):
        time.sleep(600)
"""


@dataclass
class Load:
    """Clients that ask again and again; what became of their requests."""

    url: str
    right: dict[str, str]
    found: Counter[str] = field(default_factory=Counter)
    stopping: bool = False

    async def run(self, clients: int) -> None:
        """Ask until `stopping`."""
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(base_url=self.url, timeout=MAX_WAIT_S, limits=limits) as http:
            await asyncio.gather(*(self._ask_on(http, number) for number in range(clients)))

    async def _ask_on(self, http: httpx.AsyncClient, number: int) -> None:
        while not self.stopping:
            prompt = PROMPTS[number % len(PROMPTS)]
            self.found[await self._ask(http, prompt)] += 1

    async def _ask(self, http: httpx.AsyncClient, prompt: str) -> str:
        try:
            answer = await http.post("/v1/completions", json=body(prompt))
        except httpx.TimeoutException:
            return "never ended"
        except httpx.HTTPError:
            await asyncio.sleep(0.1)  # the server has ended
            return "no connection"
        if answer.status_code == 200:
            return "right" if answer.json()["choices"][0]["text"] == self.right[prompt] else "wrong"
        await asyncio.sleep(0.1)
        said = answer.status_code == 503 and len(answer.json()["error"]["message"]) > 20
        return "503 with the reason" if said else f"{answer.status_code} without a reason"

    def verdict(self, also: bool = True) -> str:
        """PASS unless something went wrong that must not."""
        bad = [kind for kind in self.found if kind in ("never ended", "wrong") or kind.endswith("without a reason")]
        return "PASS" if also and not bad else "FAIL"


def body(prompt: str, max_tokens: int = 64) -> dict[str, object]:
    """A greedy request of a fixed length."""
    return {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}


@contextmanager
def rig(model: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[tuple[Server, Load]]:
    """A server, and a load that knows the right answers."""
    with serving(model, *FLAGS, *flags, env=env) as server:
        right = {}
        for prompt in PROMPTS:
            answer = httpx.post(f"{server.url}/v1/completions", json=body(prompt), timeout=MAX_WAIT_S)
            right[prompt] = answer.json()["choices"][0]["text"]
        yield server, Load(server.url, right)


def until(condition: Callable[[], bool], within_s: float = MAX_WAIT_S) -> float:
    """Seconds until something is so; MAX_WAIT_S or more if it never was."""
    begin = time.monotonic()
    while not condition() and time.monotonic() - begin < within_s:
        time.sleep(0.02)
    return time.monotonic() - begin


def health(server: Server) -> tuple[int, str]:
    """Status and message of /health; 0 when there is no server."""
    try:
        answer = httpx.get(f"{server.url}/health", timeout=10)
    except httpx.HTTPError:
        return 0, ""
    return answer.status_code, answer.json()["error"]["message"] if answer.content else ""


async def beside(load: Load, clients: int, attack: Callable[[], float]) -> float:
    """Do something to the server under load; what it gives."""
    running = asyncio.create_task(load.run(clients))
    await asyncio.sleep(1.0)
    try:
        return await asyncio.to_thread(attack)
    finally:
        load.stopping = True
        await running


def ended(server: Server) -> float:
    """Seconds until the server's process has ended."""
    return until(lambda: server.process.poll() is not None)


Row = tuple[str, float, str, str]


def kills(model: Path, count: int, clients: int) -> Row:
    """The process of the engines is killed again and again."""
    with rig(model, "--max-restarts", str(count + 1)) as (server, load):

        def attack() -> float:
            longest = 0.0
            for _ in range(count):
                begin = time.monotonic()
                server.kill_engine()
                longest = max(longest, time.monotonic() - begin)
                time.sleep(0.5)
            return longest

        longest = asyncio.run(beside(load, clients, attack))
        return f"kill -9 of the engine process x{count}", longest, load.verdict(load.found["right"] > 0), shown(load)


def freeze(model: Path, seconds: float, clients: int) -> Row:
    """The process of the engines is stopped for some time, and goes on."""
    with rig(model, "--engine-timeout-s", str(10 * seconds + 60)) as (server, load):
        seen: list[str] = []

        def attack() -> float:
            frozen = server.engine_pid()
            os.kill(frozen, signal.SIGSTOP)
            time.sleep(seconds)
            seen.append(health(server)[1])
            os.kill(frozen, signal.SIGCONT)
            took = until(lambda: health(server)[0] == 200)
            return took if server.engine_pid() == frozen else MAX_WAIT_S

        took = asyncio.run(beside(load, clients, attack))
        good = took < MAX_WAIT_S and ("not answered" in seen[0] or seconds < 12)
        return f"SIGSTOP for {seconds:g} s, then SIGCONT", took, load.verdict(good), f"/health: {seen[0]} {shown(load)}"


def watchdog(model: Path, clients: int) -> Row:
    """The process of the engines is stopped for ever."""
    with rig(model, "--engine-timeout-s", "2") as (server, load):

        def attack() -> float:
            frozen = server.engine_pid()
            os.kill(frozen, signal.SIGSTOP)
            return until(lambda: server.engine_pid() not in (None, frozen) and health(server)[0] == 200)

        took = asyncio.run(beside(load, clients, attack))
        return "SIGSTOP for ever, --engine-timeout-s 2", took, load.verdict(took < MAX_WAIT_S), shown(load)


def hangups(model: Path, clients: int) -> Row:
    """SIGHUP to both processes, and to one that has just been started."""
    with rig(model) as (server, load):

        def attack() -> float:
            server.process.send_signal(signal.SIGHUP)
            host = server.engine_pid()
            os.kill(host, signal.SIGHUP)
            os.kill(host, signal.SIGKILL)
            until(lambda: server.engine_pid() not in (None, host))
            young = server.engine_pid()
            os.kill(young, signal.SIGHUP)
            took = until(lambda: health(server)[0] == 200)
            return took if server.engine_pid() == young else MAX_WAIT_S

        took = asyncio.run(beside(load, clients, attack))
        return "SIGHUP to all, one that is loading too", took, load.verdict(took < MAX_WAIT_S), shown(load)


def terminated(model: Path, clients: int, frozen: bool) -> Row:
    """SIGTERM under load; frozen: the process of the engines does not answer any more."""
    with rig(model, "--shutdown-timeout-s", "3") as (server, load):

        def attack() -> float:
            host = server.engine_pid()
            if frozen:
                os.kill(host, signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            took = ended(server)
            gone = until(lambda: not Path(f"/proc/{host}").exists(), 5)
            return took if gone < 5 else MAX_WAIT_S

        took = asyncio.run(beside(load, clients, attack))
        name = "SIGTERM under load" + (", engine process frozen" if frozen else "")
        return name, took, load.verdict(took < 3 + GRACE_S + 2 and server.process.returncode == 0), shown(load)


def hanging_plugins(model: Path, folder: Path) -> Row:
    """SIGTERM while events of a plugin hang in both processes."""
    folder.mkdir()
    PluginSite(folder).add("hangs", HANGS)
    env = {"PYTHONPATH": str(folder)}
    with rig(model, "--shutdown-timeout-s", "3", "--plugins", "llama,hangs", env=env) as (server, load):
        server.process.send_signal(signal.SIGTERM)
        took = ended(server)
        good = took < 3 + GRACE_S + 2 and server.process.returncode == 0
        return "SIGTERM while plugins hang", took, load.verdict(good), f"status {server.process.returncode}"


def used_up(model: Path, clients: int) -> Row:
    """The process of the engines is killed once more than it may be restarted."""
    with rig(model, "--max-restarts", "1") as (server, load):

        def attack() -> float:
            server.kill_engine()
            os.kill(server.engine_pid(), signal.SIGKILL)
            return ended(server)

        took = asyncio.run(beside(load, clients, attack))
        return "restarts used up", took, load.verdict(server.process.returncode == 1), shown(load)


def shown(load: Load) -> str:
    """How many requests had which end."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(load.found.items()))


def main() -> int:
    """Run all; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="how often the engine process is killed")
    parser.add_argument("--freeze-s", type=float, default=15.0, help="how long it is stopped")
    parser.add_argument("--clients", type=int, default=8, help="clients that ask all the time")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        model = tiny_llama(Path(scratch) / "tiny")
        attacks: tuple[Callable[[], Row], ...] = (
            lambda: kills(model, args.kills, args.clients),
            lambda: freeze(model, args.freeze_s, args.clients),
            lambda: watchdog(model, args.clients),
            lambda: hangups(model, args.clients),
            lambda: terminated(model, args.clients, frozen=False),
            lambda: terminated(model, args.clients, frozen=True),
            lambda: hanging_plugins(model, Path(scratch) / "site"),
            lambda: used_up(model, args.clients),
        )
        print(f"{'attack':44} {'seconds':>8}  verdict  what became of it")
        for attack in attacks:
            name, seconds, verdict, what = attack()
            failed |= verdict == "FAIL"
            print(f"{name:44} {seconds:8.2f}  {verdict:7}  {what}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
