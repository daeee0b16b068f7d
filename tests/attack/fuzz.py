"""Random requests to all routes of /openapi.json, many at a time.

    python tests/attack/fuzz.py --requests 100000 --seed 1 --concurrency 16

Prints the statuses of each route and a verdict; exit status 1 if there is a 5xx (503 with a reason counts apart),
a request without an end, a 200 that is no JSON, an error without the shape of errors, a stall of /health beyond
the bound of a loaded machine (the requests themselves load it; their 99th percentile has the bound of an idle one), or
memory or file descriptors that grow: by more than 2 % from the first tenth (at least a thousand requests) to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from bases import openapi, others, routes
from demos import IDLE_BOUND_MS, LOADED_BOUND_MS, Size, demos, percentile, sizes
from mutations import Made, Mutator
from serving import Server
from wire import WEBSOCKET, Answer, Wire

TEXTS = frozenset({"/metrics", "/openapi.json", "/docs", "/redoc", "/", "/ping", "/health/live"})
GROWTH = 1.02
FDS = 8
"""File descriptors that may be more: those of connections that are being closed."""


@dataclass
class Found:
    """What came of the requests."""

    statuses: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    bad: list[str] = field(default_factory=list)
    done: int = 0
    longest_s: float = 0.0
    longest: str = ""

    def add(self, made: Made, answer: Answer | None) -> None:
        status = -1 if answer is None else answer.status
        self.statuses[made.path if status != 404 else "(unknown)"][status] += 1
        self.done += 1
        if answer is not None and answer.seconds > self.longest_s:
            self.longest_s, self.longest = answer.seconds, f"{made.path} {made.body[:300]!r}"
        fault = what_is_wrong(made, answer)
        if fault:
            self.bad.append(f"{fault}: {made.method} {made.path} {made.kind} {made.body[:1500]!r}")


def what_is_wrong(made: Made, answer: Answer | None) -> str:
    """Why an answer is not right; empty if it is."""
    if answer is None:
        return "no end"
    if answer.status == 0:
        return "the connection was closed without an answer"
    if answer.content_type == WEBSOCKET:
        return spoken_fault(answer.body)
    if answer.status >= 500 and answer.status != 503:
        return f"{answer.status} {answer.body[:300]!r}"
    if answer.status >= 400:
        return "" if has_reason(answer) else f"{answer.status} without a reason: {answer.body[:200]!r}"
    if answer.status == 200 and answer.content_type.startswith("application/json"):
        try:
            json.loads(answer.body)
        except ValueError:
            return f"200 with what is no JSON: {answer.body[:200]!r}"
    if answer.content_type.startswith("text/event-stream"):
        return whole_stream(answer.body)
    return ""


def spoken_fault(body: bytes) -> str:
    """Why the events of a WebSocket are not right: one that is no JSON, an error without a reason, or a fault."""
    for line in body.split(b"\n"):
        try:
            event = json.loads(line)
            error = event.get("error")
            reason = error if isinstance(error, str) or error is None else error["message"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"an event that is wrong: {line[:300]!r}"
        if reason == "" or event.get("code") in (1006, 1011) or b"internal error" in line:
            return f"a fault: {line[:300]!r}"
    return ""


def has_reason(answer: Answer) -> bool:
    """Whether an error has a sentence where its API has it: OpenAI and Anthropic, Ollama, or Cohere."""
    try:
        found = answer.json()
        error = found.get("error", found)
        return bool(error if isinstance(error, str) else error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def whole_stream(body: bytes) -> str:
    """Why a stream is not right: an event that is no JSON, or no end. Errors inside are checked for their reason."""
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
    for event in events:
        if event != b"[DONE]":
            try:
                found = json.loads(event)
            except ValueError:
                return f"an event that is no JSON: {event[:200]!r}"
            if isinstance(found, dict) and found.get("error") and found["error"].get("code") not in (400, 503):
                return f"an error in a stream: {event[:300]!r}"
    return ""


async def client(port: int, mutator: Mutator, found: Found, until: int, within_s: float) -> None:
    wire = Wire(port)
    while found.done < until:
        made = mutator.next()
        try:
            found.add(made, await wire.ask(made.method, made.path, made.body, made.kind, within_s))
        except TimeoutError:
            found.add(made, None)
    await wire.close()


async def fuzz(server: Server, mutator: Mutator, found: Found, until: int, args: argparse.Namespace) -> None:
    async def tell() -> None:
        while True:
            await asyncio.sleep(30)
            now = ", ".join(f"{name} {size}" for name, size in sizes(server).items())
            print(f"  {found.done} requests, {len(found.bad)} bad; {now}", flush=True)

    telling = asyncio.create_task(tell())
    await asyncio.gather(*(client(server.port, mutator, found, until, args.within_s) for _ in range(args.concurrency)))
    telling.cancel()


def grown(before: dict[str, Size], after: dict[str, Size]) -> list[str]:
    """What is larger than it may be."""
    bad = []
    for name, size in after.items():
        was = before[name]
        print(f"{name}: {was}, then {size} ({size.rss / was.rss - 1:+.1%})")
        if size.rss > GROWTH * was.rss:
            bad.append(f"memory of {name} grew by {size.rss / was.rss - 1:.1%}")
        if size.fds > was.fds + FDS:
            bad.append(f"file descriptors of {name} grew from {was.fds} to {size.fds}")
    return bad


def table(found: Found) -> None:
    for path, statuses in sorted(found.statuses.items()):
        print(f"{path:30} " + "  ".join(f"{status}: {count}" for status, count in sorted(statuses.items())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--within-s", type=float, default=90.0, help="when a request counts as without an end")
    args = parser.parse_args()
    bound, found = LOADED_BOUND_MS, Found()
    with demos(probe=("--no-stream",)) as (server, probe):
        assert probe is not None
        spec = openapi(server.url)
        mutator = Mutator(spec, routes(spec), others(spec), args.seed)
        engine = server.engine_pid()
        asyncio.run(fuzz(server, mutator, found, max(1000, args.requests // 10), args))
        before, begin, begun = sizes(server), time.monotonic(), found.done
        asyncio.run(fuzz(server, mutator, found, args.requests, args))
        rate = (found.done - begun) / max(1e-3, time.monotonic() - begin)
        time.sleep(1)
        after, seen = sizes(server), probe.take(waits=True)
        bad = grown(before, after)
        if server.engine_pid() != engine:
            bad.append("the engine process was restarted")
        if "Traceback" in server.output():
            bad.append("the log has a traceback: " + server.output().split("Traceback", 1)[1][:3000])
    table(found)
    print(f"{found.done} requests, {rate:.0f} a second; the longest took {found.longest_s:.1f} s: {found.longest}")
    p99 = percentile(seen["waits"], 0.99) * 1e3
    waits = f"p99 {p99:.0f} ms, longest {seen['health_ms']:.0f} ms (bound {bound:.0f} ms)"
    print(f"/health: {waits}; the probe itself was late by up to {seen['own_ms']:.0f} ms")
    if seen["health_ms"] - seen["own_ms"] > bound:  # while the probe was late, so was what it measured
        bad.append(f"/health took {seen['health_ms']:.0f} ms")
    if p99 > IDLE_BOUND_MS:
        bad.append(f"/health took {p99:.0f} ms in one of a hundred cases")
    kinds = Counter(fault.split(":")[0] for fault in found.bad)
    print(
        "\n".join(
            ["FAIL" if bad or found.bad else "PASS", *bad, *(f"{count} × {kind}" for kind, count in kinds.items())]
        )
    )
    print("\n".join(found.bad[:40]))
    return int(bool(bad or found.bad))


if __name__ == "__main__":
    sys.exit(main())
