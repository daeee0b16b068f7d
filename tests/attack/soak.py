"""Mixed load for a long time: every answer is the right one, every failure says why, nothing hangs, nothing grows.

    python tests/attack/soak.py --minutes 30 --clients 32 --kill-every-s 300

Chats, completions, pictures, speech, structured output, tools, embeddings and adapters, streamed or not, cut off in the
middle, bad requests, and adapters that are loaded and unloaded meanwhile; now and then the engine process is killed.
Greedy answers are compared with those that the server gave alone at the start. A line a minute, and at the end a
verdict (exit status 1 for FAIL): no wrong answer, none that hangs (90 s), each failure with an error object, memory and
file descriptors flat, p99 of /health within 50 ms (150 ms if others use the machine).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from demos import PIRATE, Probe, Size, bound_ms, demos, percentile, sizes
from requests_of_all_kinds import KINDS, Kind, has_error, made_of, same
from serving import Server
from wire import Wire

WARM_UP_S = 120.0
"""Memory is compared from then on, or from a fifth of the time if that is less."""

GROWTH, MORE_FDS, HANGS_S = 1.05, 16, 90.0


@dataclass
class Tally:
    """What became of requests, since the start and in this minute."""

    total: Counter[str] = field(default_factory=Counter)
    minute: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, detail: str = "") -> None:
        self.total[what] += 1
        self.minute[what] += 1
        if what in ("wrong", "hung", "failed without a reason") and len(self.faults) < 50:
            self.faults.append(f"{what}: {detail[:1500]}")


class Client:
    """Asks for one random thing after another."""

    def __init__(self, port: int, number: int, right: dict[str, Any], tally: Tally, ends: float) -> None:
        self._wire, self._rng = Wire(port), random.Random(number)
        self._number, self._right, self._tally, self._ends = number, right, tally, ends

    async def run(self) -> None:
        while time.monotonic() < self._ends:
            kind = self._rng.choices(KINDS, [one.weight for one in KINDS])[0]
            try:
                async with asyncio.timeout(HANGS_S):
                    await (self._cut_off(kind) if kind.cut_off else self._ask(kind))
            except TimeoutError:
                self._tally.add("hung", kind.name)
                await self._wire.close()
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                self._tally.add("failed without a reason", f"{kind.name}: {error!r}")
                await self._wire.close()
        await self._wire.close()

    async def _ask(self, kind: Kind) -> None:
        answer = await self._wire.ask("POST", kind.path, kind.body, kind.content_type, HANGS_S)
        if answer.status == kind.status:
            found = made_of(kind, answer)
            if isinstance(found, str) and found.startswith("error: "):
                self._tally.add("told in the stream")
            elif same(kind, found, self._right[kind.name]):
                self._tally.add("right")
            else:
                self._tally.add("wrong", f"{kind.name}: {found!r} instead of {self._right[kind.name]!r}")
        elif has_error(answer):
            self._tally.add(f"told {answer.status}")
            await asyncio.sleep(0.2)
        else:
            self._tally.add("failed without a reason", f"{kind.name}: {answer.status} {answer.body[:300]!r}")

    async def _cut_off(self, kind: Kind) -> None:
        _, parts = await self._wire.stream(kind.path, json.loads(kind.body), HANGS_S)
        left = self._rng.randrange(1, 12)
        async for _ in parts:
            left -= 1
            if not left:
                break
        self._tally.add("cut off")
        await self._wire.close()


async def churn(port: int, tally: Tally, ends: float) -> None:
    """Adapters of other names come and go."""
    wire, number = Wire(port), 0
    while time.monotonic() < ends:
        name = f"guest-{number % 6}"
        number += 1
        for path, more in (("load", {"lora_path": str(PIRATE), "base_model_name": "demo-chat"}), ("unload", {})):
            body = json.dumps({"lora_name": name, **more}).encode()
            try:
                answer = await wire.ask("POST", f"/v1/{path}_lora_adapter", body, within_s=HANGS_S)
            except TimeoutError:
                tally.add("hung", f"{path} of an adapter")
                continue
            good = answer.status == 200 or has_error(answer)
            tally.add(
                f"adapter {path}ed" if answer.status == 200 else "adapter told" if good else "failed without a reason"
            )
            await asyncio.sleep(0.3)


async def kills(server: Server, every_s: float, tally: Tally, ends: float) -> None:
    """Kill the engine process now and then, the first time after as long."""
    while time.monotonic() + every_s < ends - 30:
        await asyncio.sleep(every_s)
        engine = server.engine_pid()
        if engine is not None:
            os.kill(engine, signal.SIGKILL)
            tally.add("kills")


@dataclass
class Watch:
    """A line a minute."""

    server: Server
    probe: Probe
    tally: Tally
    waits: list[float] = field(default_factory=list)
    seen: list[dict[str, Size]] = field(default_factory=list)

    async def run(self, ends: float, every_s: float) -> None:
        while time.monotonic() < ends:
            await asyncio.sleep(every_s)
            self.report_finished()

    def report_finished(self) -> None:
        found = self.probe.take(waits=True)
        self.waits += found["waits"]
        now = sizes(self.server)
        self.seen.append(now)
        share = [percentile(found["waits"], part) * 1e3 for part in (0.5, 0.99, 1.0)]
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.tally.minute.items()))
        shown = "; ".join(f"{name} {size}" for name, size in now.items())
        print(
            f"{time.strftime('%H:%M:%S')} {done}\n    {shown}; /health p50 {share[0]:.0f}, p99 {share[1]:.0f}, ", end=""
        )
        print(f"longest {share[2]:.0f} ms", flush=True)
        self.tally.minute.clear()


async def soak(server: Server, probe: Probe, right: dict[str, Any], args: argparse.Namespace) -> Watch:
    seconds = args.minutes * 60
    ends, tally = time.monotonic() + seconds, Tally()
    watch = Watch(server, probe, tally)
    probe.take()
    await asyncio.gather(
        *(Client(server.port, number, right, tally, ends).run() for number in range(args.clients)),
        churn(server.port, tally, ends),
        kills(server, args.kill_every_s, tally, ends),
        watch.run(ends, min(60.0, seconds / 4)),
    )
    return watch


def verdict(watch: Watch, bound: float, args: argparse.Namespace) -> list[str]:
    """What is not as it must be."""
    total, bad = watch.tally.total, []
    for what in ("wrong", "hung", "failed without a reason"):
        if total[what]:
            bad.append(f"{total[what]} {what}")
    p99 = percentile(watch.waits, 0.99) * 1e3
    print(
        f"/health over all: p99 {p99:.0f} ms, longest {max(watch.waits, default=0) * 1e3:.0f} ms (bound {bound:.0f} ms)"
    )
    if p99 > bound:
        bad.append(f"p99 of /health is {p99:.0f} ms")
    # The engine process is another after each kill; the largest of the first part is compared with the last.
    begun = max(1, int(len(watch.seen) * min(0.2, WARM_UP_S / (args.minutes * 60)) + 0.5))
    for name in ("api", "engine"):
        early = [seen[name] for seen in watch.seen[: begun + 1] if name in seen]
        late = [seen[name] for seen in watch.seen[-3:] if name in seen]
        if early and late:
            was, now = max(size.rss for size in early), sorted(size.rss for size in late)[len(late) // 2]
            print(f"{name}: {was / 1e6:.0f} MB, then {now / 1e6:.0f} MB ({now / was - 1:+.1%})")
            if now > GROWTH * was:
                bad.append(f"memory of {name} grew by {now / was - 1:.1%}")
            if min(size.fds for size in late) > max(size.fds for size in early) + MORE_FDS:
                bad.append(f"file descriptors of {name} grew")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--kill-every-s", type=float, default=300.0)
    args = parser.parse_args()
    bound = bound_ms()
    with demos("--max-restarts", "1000", probe=("--no-stream",)) as (server, probe):
        assert probe is not None
        right = asyncio.run(right_answers(server.port))
        watch = asyncio.run(soak(server, probe, right, args))
        bad = verdict(watch, bound, args)
    print(", ".join(f"{count} {what}" for what, count in sorted(watch.tally.total.items())))
    print("\n".join(["FAIL: " + ", ".join(bad) if bad else "PASS", *watch.tally.faults]))
    return int(bool(bad))


async def right_answers(port: int) -> dict[str, Any]:
    """What each kind of request gives while nothing else runs; AssertionError for one that isn't as it must be."""
    wire, right = Wire(port), {}
    for kind in KINDS:
        if not kind.cut_off:
            answer = await wire.ask("POST", kind.path, kind.body, kind.content_type)
            assert answer.status == kind.status, (kind.name, answer)
            right[kind.name] = made_of(kind, answer)
    await wire.close()
    return right


if __name__ == "__main__":
    sys.exit(main())
