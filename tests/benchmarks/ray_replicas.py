"""What clients of the application on Ray see while replicas are killed, and how many replicas there are under load.

platform deploy tests/benchmarks/ray_replicas.yaml     in another terminal; three replicas
python tests/benchmarks/ray_replicas.py kill           kills replicas under load
python tests/benchmarks/ray_replicas.py scale          prints the number of replicas while load comes and goes;
                                                       give the replicas an autoscaling_config first
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

from openai import APIError, AsyncOpenAI

TITLE = b"ray::ServeReplica:quire:Replica"
PROMPTS = [f"Tell me about island number {number}." for number in range(6)]


def replicas() -> list[int]:
    """Process ids of the replicas on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if title.startswith(TITLE):
            found.append(int(folder.name))
    return found


async def ask(client: AsyncOpenAI, prompt: str, stream: bool, num_tokens: int) -> tuple[str, str]:
    """What became of a request, and the answer."""
    body = {
        "model": "demo-chat",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "extra_body": {"ignore_eos": True},  # streams long enough to be cut off
    }
    text, has_begun = "", False
    try:
        if not stream:
            answer = await client.chat.completions.create(**body)
            return "answered", answer.choices[0].message.content or ""
        async for part in await client.chat.completions.create(**body, stream=True):
            has_begun = True
            text += part.choices[0].delta.content or ""
    except APIError as error:
        return ("cut off" if has_begun else f"lost before it began: {error}"), text
    return "answered", text


async def load(url: str, num_clients: int, num_tokens: int, until: asyncio.Event, seen: Counter[str]) -> None:
    """Clients that ask until the event is set."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        right = [(await ask(client, prompt, False, num_tokens))[1] for prompt in PROMPTS]

        async def one(number: int) -> None:
            turn = number
            while not until.is_set():
                turn += 1
                which = turn % len(PROMPTS)
                begun = time.monotonic()
                state, text = await ask(client, PROMPTS[which], turn % 2 == 0, num_tokens)
                seen["wrong" if state == "answered" and text != right[which] else state] += 1
                seen["longest, ms"] = max(seen["longest, ms"], int(1000 * (time.monotonic() - begun)))

        await asyncio.gather(*(one(number) for number in range(num_clients)))


async def kill(args: argparse.Namespace) -> Counter[str]:
    """Kill a replica, wait until there are as many as before, and so on, under load."""
    seen: Counter[str] = Counter()
    until, whole = asyncio.Event(), len(replicas())
    running = asyncio.create_task(load(args.url, args.clients, args.tokens, until, seen))
    await asyncio.sleep(5)
    for _ in range(args.times):
        victim, begun = replicas()[0], time.monotonic()
        os.kill(victim, signal.SIGSTOP if args.stop else signal.SIGKILL)
        while victim in (found := replicas()) or len(found) < whole:
            await asyncio.sleep(0.2)
        what = "stopped" if args.stop else "killed"
        print(f"{what} one of {whole}; a new process after {time.monotonic() - begun:.1f} s: {dict(seen)}", flush=True)
        await asyncio.sleep(args.pause)
    until.set()
    await running
    return seen


async def scale(args: argparse.Namespace) -> Counter[str]:
    """Load for a while, then none; prints when the number of replicas changes."""
    seen: Counter[str] = Counter()
    until, begun, last = asyncio.Event(), time.monotonic(), -1
    running = asyncio.create_task(load(args.url, args.clients, args.tokens, until, seen))
    while time.monotonic() - begun < 2 * args.pause:
        if (now := len(replicas())) != last:
            print(f"{time.monotonic() - begun:6.1f} s: {now} replicas", flush=True)
            last = now
        if time.monotonic() - begun > args.pause and not until.is_set():
            print(f"{time.monotonic() - begun:6.1f} s: the load ends", flush=True)
            until.set()
        await asyncio.sleep(0.5)
    await running
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kill", "scale"))
    parser.add_argument("--url", default="http://127.0.0.1:8123")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--times", type=int, default=3, help="replicas to kill")
    parser.add_argument("--stop", action="store_true", help="send SIGSTOP instead of SIGKILL")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between kills; of load")
    args = parser.parse_args()
    print(dict(asyncio.run({"kill": kill, "scale": scale}[args.what](args))))


if __name__ == "__main__":
    main()
