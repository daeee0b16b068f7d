"""Random operations on a live server's adapters, from many clients: every answer is the right one, nothing is lost.

    python tests/benchmarks/adapter_stress.py --operations 2000 --clients 16

Each client loads, replaces and unloads names of its own, well or badly, waiting or not, and asks for everyone's. An
answer must be that of a revision that its name had while the request was under way. `test_adapter_stress.py` runs a
short one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import string
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

import httpx
from letter_adapters import Voices
from serving import serving

from quire_testing.tiny import tiny_llama

FLAGS = ("--enable-lora", "--dtype", "float32", "--num-pages", "400", "--max-model-len", "256")
SLOTS = ("--max-loras", "4", "--max-cpu-loras", "8")
LETTERS = string.ascii_uppercase + string.ascii_lowercase
BAD = "what cannot be loaded"
NAMES_EACH = 2
PROMPTS = ("Once upon a time there was", "Once upon a time there was a", "x")


class Truth:
    """What each name may stand for now: letters, None for no adapter, BAD; two values while it changes."""

    def __init__(self) -> None:
        self._now: dict[str, set[str | None]] = {}
        self._watchers: dict[str, list[set[str | None]]] = {}

    def may_be(self, name: str, *letters: str | None) -> None:
        self._now[name] = set(letters)
        for seen in self._watchers.get(name, []):
            seen.update(letters)

    def now(self, name: str) -> set[str | None]:
        return self._now.get(name, {None})

    @contextmanager
    def watch(self, name: str) -> Iterator[set[str | None]]:
        """All that it may have meant since then."""
        seen = set(self.now(name))
        self._watchers.setdefault(name, []).append(seen)
        try:
            yield seen
        finally:
            self._watchers[name] = [other for other in self._watchers[name] if other is not seen]


class Client:
    """One client and the names that only it changes. folders: by letter; bad: none that can be loaded."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        number: int,
        truth: Truth,
        everyone: list[str],
        folders: dict[str, Path],
        bad: Path,
    ) -> None:
        self._http, self._truth, self._everyone, self._folders, self._bad = http, truth, everyone, folders, bad
        self._rng = random.Random(number)
        self.names = [f"c{number}-{i}" for i in range(NAMES_EACH)]
        self.done: Counter[str] = Counter()

    async def run(self, counter: Iterator[int], operations: int) -> None:
        moves: list[tuple[Callable[[], Coroutine[Any, Any, str]], int]] = [
            (self._ask, 50),
            (self._ask_base, 5),
            (self._hang_up, 5),
            (self._load, 25),
            (self._unload, 10),
            (self._load_badly, 5),
        ]
        choices, weights = zip(*moves, strict=True)
        while next(counter) < operations:
            self.done[await self._rng.choices(choices, weights)[0]()] += 1

    async def unload_all(self) -> None:
        for name in self.names:
            if self._truth.now(name) != {None}:
                await self._post("unload_lora_adapter", lora_name=name)
                self._truth.may_be(name, None)

    async def _post(self, path: str, expect: int = 200, **body: Any) -> httpx.Response:
        reply = await self._http.post(f"/v1/{path}", json=body)
        assert reply.status_code == expect, (path, body, reply.status_code, reply.text)
        return reply

    def _request(self, model: str) -> dict[str, Any]:
        tokens = self._rng.randint(1, 24)
        prompt = self._rng.choice(PROMPTS)
        return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

    async def _ask(self) -> str:
        name = self._rng.choice(self._everyone)
        body = self._request(name)
        with self._truth.watch(name) as seen:
            reply = await self._http.post("/v1/completions", json=body)
        if reply.status_code == 404:
            assert None in seen, (name, seen, reply.text)
            return "asked for nobody"
        if reply.status_code == 400 and BAD in seen:
            assert "cannot be used" in reply.text, reply.text
            return "asked for what was refused"
        assert reply.status_code == 200, (name, seen, reply.status_code, reply.text)
        text = reply.json()["choices"][0]["text"]
        assert text in {letter * body["max_tokens"] for letter in seen if letter in self._folders}, (name, seen, text)
        return "asked an adapter"

    async def _ask_base(self) -> str:
        reply = await self._post("completions", **self._request("base"))
        text = reply.json()["choices"][0]["text"]
        assert len(text) == 1 or len(set(text)) > 1, f"the base model does not say {text!r}"
        return "asked the base"

    async def _hang_up(self) -> str:
        body = {**self._request(self._rng.choice(self._everyone)), "stream": True, "max_tokens": 200}
        async with self._http.stream("POST", "/v1/completions", json=body) as reply:
            assert reply.status_code in (200, 404, 400), reply.status_code
            async for _ in reply.aiter_bytes():
                break
        return "hung up"

    async def _load(self) -> str:
        name, letter = self._rng.choice(self.names), self._rng.choice(LETTERS)
        before, wait = self._truth.now(name), self._rng.random() < 0.7
        inplace = before != {None}
        self._truth.may_be(name, *before, letter)
        body = {"lora_name": name, "lora_path": str(self._folders[letter]), "load_inplace": inplace, "wait": wait}
        await self._post("load_lora_adapter", **body)
        while not wait:
            rows = (await self._http.get("/v1/adapters")).json()["data"]
            wait = [row["state"] for row in rows if row["id"] == name and row["state"] != "retired"] == ["ready"]
        self._truth.may_be(name, letter)
        return "replaced" if inplace else "loaded"

    async def _unload(self) -> str:
        name = self._rng.choice(self.names)
        before = self._truth.now(name)
        self._truth.may_be(name, *before, None)
        await self._post("unload_lora_adapter", 404 if before == {None} else 200, lora_name=name)
        self._truth.may_be(name, None)
        return "unloaded nobody" if before == {None} else "unloaded"

    async def _load_badly(self) -> str:
        name = self._rng.choice(self.names)
        before = self._truth.now(name)
        if before == {None}:
            self._truth.may_be(name, None, BAD)
        body = {"lora_name": name, "lora_path": str(self._bad), "load_inplace": before != {None}}
        await self._post("load_lora_adapter", 400, **body)
        self._truth.may_be(name, *before)
        return "was refused"


async def stress(url: str, folders: dict[str, Path], bad: Path, num_clients: int, operations: int) -> Counter[str]:
    """Run it, unload all, see that nothing is left; what was done how often."""
    truth = Truth()
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as http:
        everyone = [f"c{number}-{i}" for number in range(num_clients) for i in range(NAMES_EACH)]
        clients = [Client(http, number, truth, everyone, folders, bad) for number in range(num_clients)]
        counter = itertools.count()
        await asyncio.gather(*(client.run(counter, operations) for client in clients))
        for client in clients:
            await client.unload_all()
        while left := (await http.get("/v1/adapters")).json()["data"]:  # requests that were hung up on end soon
            assert all(row["state"] == "retired" for row in left), left
        health = await http.get("/health")
        assert health.status_code == 200
    return sum((client.done for client in clients), Counter())


def make_folders(root: Path, ballast_rank: int) -> tuple[Path, dict[str, Path], Path]:
    """A tiny model, adapters for it by letter, and one that cannot be loaded."""
    base = tiny_llama(root / "base")
    voices = Voices(base, ballast_rank)
    folders = {letter: voices.adapter(root / f"says-{i}", letter) for i, letter in enumerate(LETTERS)}
    bad = voices.adapter(root / "bad", "B")
    file = bad / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return base, folders, bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=1000, help="operations until the allocator's pools have settled")
    parser.add_argument("--ballast-rank", type=int, default=64, help="makes adapters larger: what is lost shows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        base, folders, bad = make_folders(Path(root), args.ballast_rank)
        size = sum(file.stat().st_size for file in folders["A"].iterdir())
        with serving(f"base={base}", *FLAGS, *SLOTS) as server:
            asyncio.run(stress(server.url, folders, bad, args.clients, args.warm_up))
            before = server.host_bytes()
            done = asyncio.run(stress(server.url, folders, bad, args.clients, args.operations))
            after = server.host_bytes()
    for what, times in done.most_common():
        print(f"{times:6} {what}")
    print(f"adapter {size / 1e6:.2f} MB; host process {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
    print(f"memory: {after / before - 1:+.2%} (at most 2 % more is right)")
    raise SystemExit(after > 1.02 * before)


if __name__ == "__main__":
    main()
