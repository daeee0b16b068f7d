"""What clients of the application on Ray see while replicas are killed, and how many replicas there are under load.

platform deploy tests/benchmarks/ray_replicas.yaml     in another terminal; three replicas
python tests/benchmarks/ray_replicas.py kill           kills replicas under load
python tests/benchmarks/ray_replicas.py scale          prints the number of replicas while load comes and goes;
                                                       give the replicas an autoscaling_config first
python tests/benchmarks/ray_replicas.py adapter        loads an adapter, asks for it, looks for it in the metrics of all
                                                       replicas, and unloads it
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx
from openai import APIError, AsyncOpenAI

import quire_demos

TITLE = b"ray::ServeReplica:quire:Replica"
PIRATE = Path(quire_demos.__file__).parent / "demo_chat" / "adapters" / "pirate"
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


async def ask(
    client: AsyncOpenAI, prompt: str, stream: bool, num_tokens: int, model: str = "demo-chat"
) -> tuple[str, str]:
    """What became of a request, and the answer."""
    body = {
        "model": model,
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


async def adapter(args: argparse.Namespace) -> Counter[str]:
    """Answers of an adapter that is loaded meanwhile, by what they equal, and replicas in the metrics."""
    seen: Counter[str] = Counter()
    prompts = [f"Tell me about the sea, in {number} words." for number in range(args.clients)]
    async with (
        httpx.AsyncClient(base_url=args.url, timeout=120) as http,
        AsyncOpenAI(base_url=f"{args.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):

        async def answers(model: str) -> list[str]:
            found = await asyncio.gather(*(ask(client, each, False, args.tokens, model) for each in prompts))
            seen.update(f"{model}: {state}" for state, _ in found)
            return [text for _, text in found]

        base = await answers("demo-chat")
        body = {"lora_name": "pirate", "lora_path": str(PIRATE)}
        print("load:", (await http.post("/v1/load_lora_adapter", json=body)).status_code, flush=True)
        first, second = await answers("pirate"), await answers("pirate")
        seen["same answer twice"] = sum(one == other for one, other in zip(first, second, strict=True))
        seen["as the base model"] = sum(one == other for one, other in zip(first, base, strict=True))
        samples = (await http.get("/metrics")).text.splitlines()
        seen["replicas in /metrics"] = len(replicas_of(samples))
        seen["of these with requests of the adapter"] = len(replicas_of(line for line in samples if "pirate" in line))
        print("unload:", (await http.post("/v1/unload_lora_adapter", json={"lora_name": "pirate"})).status_code)
        state, _ = await ask(client, "Hi", False, 4, "pirate")
        seen[f"pirate, unloaded: {state}"] += 1
    return seen


def replicas_of(samples: Iterable[str]) -> set[str]:
    """The replicas that lines of metrics are about."""
    return {found[1] for line in samples if (found := re.search(r'replica="([^"]+)"', line))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kill", "scale", "adapter"))
    parser.add_argument("--url", default="http://127.0.0.1:8123")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--times", type=int, default=3, help="replicas to kill")
    parser.add_argument("--stop", action="store_true", help="send SIGSTOP instead of SIGKILL")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between kills; of load")
    args = parser.parse_args()
    print(dict(asyncio.run({"kill": kill, "scale": scale, "adapter": adapter}[args.what](args))))


if __name__ == "__main__":
    main()
