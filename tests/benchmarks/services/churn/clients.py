"""A process with many clients of a server, and clients that change its models.

Gets its task as JSON on stdin, writes what it found as JSON to stdout. It imports little, to be quick and small.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from answers import Seen, Targets, ask_until, repeat
from connection import Connection

POLL_S = 0.2
"""Time between two looks at whether a SIGHUP has had its effect."""

MAX_PAUSE_S = 1.0
"""Longest pause between two changes of one kind."""


async def load_and_unload(seen: Seen, task: dict[str, Any], until: float) -> None:
    """Load a model and an adapter of it, ask both, and unload them."""
    rng, link = random.Random(1), Connection(task["port"])
    while time.monotonic() < until:
        name = rng.choice(list(task["changing"]))
        adapter = f"{name}-0"
        fields = {"name": name, "model": task["changing"][name]}
        loads = rng.choice(["startup", "on-demand"])
        if await seen.change(link, "POST", "/v1/load_model", {**fields, "settings": {"load": loads}}) is None:
            continue
        await seen.ask(link, name, 1, 4)
        fields = {"lora_name": adapter, "lora_path": task["adapters"][adapter], "base_model_name": name}
        if rng.random() < 0.5 and await seen.change(link, "POST", "/v1/load_lora_adapter", fields) is not None:
            await seen.ask(link, adapter, 1, 4)
            if rng.random() < 0.5:
                await seen.change(link, "POST", "/v1/unload_lora_adapter", {"lora_name": adapter})
        await seen.change(link, "POST", "/v1/unload_model", {"name": name})
        await asyncio.sleep(rng.random() * MAX_PAUSE_S)


async def switch_alias(seen: Seen, task: dict[str, Any], until: float) -> None:
    """Give an alias to other models, one or two at a time."""
    rng, link = random.Random(2), Connection(task["port"])
    while time.monotonic() < until:
        models = rng.sample(task["targets"], rng.randint(1, 2))
        weights = [{"model": name, "weight": rng.randint(1, 9)} for name in models]
        seen.aliases[task["switched"]].begin(models)
        body = {"alias": task["switched"], "models": weights, "sticky": "none"}
        if await seen.change(link, "POST", "/v1/model_aliases", body) is None:
            return
        seen.aliases[task["switched"]].confirm()
        await asyncio.sleep(rng.random() * MAX_PAUSE_S)


async def hang_up(seen: Seen, task: dict[str, Any], until: float) -> None:
    """Change the file of settings, send SIGHUP, and see that an alias and a model are as the file says."""
    rng, link = random.Random(3), Connection(task["port"])
    file, name = Path(task["file"]), task["in_file"]
    first = json.loads(file.read_text())
    target = first["model-aliases"][task["configured"]]
    while time.monotonic() < until:
        more = {"name": name, "model": task["file_model"], "load": rng.choice(["startup", "on-demand"])}
        for models in ([*first["models"], more], first["models"]):
            target = rng.choice([other for other in task["targets"] if other != target])
            seen.aliases[task["configured"]].begin([target])
            file.write_text(json.dumps({**first, "models": models, "model-aliases": {task["configured"]: target}}))
            os.kill(task["pid"], signal.SIGHUP)
            seen.answers["SIGHUP"] += 1
            if not await _stands_for(seen, link, task["configured"], target):
                return
            seen.aliases[task["configured"]].confirm()
            if models is first["models"]:
                await _is_gone(link, name)
            else:
                await seen.ask(link, name, 1, 4)
            await asyncio.sleep(rng.random() * MAX_PAUSE_S)
    file.write_text(json.dumps(first))


async def _stands_for(seen: Seen, link: Connection, alias: str, model: str) -> bool:
    """Wait until an alias stands for a model; False if that takes too long, which is noted."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        listed = (await link.call("GET", "/v1/model_aliases")).json()["data"]
        if any(one["id"] == alias and [t["model"] for t in one["models"]] == [model] for one in listed):
            return True
        await asyncio.sleep(POLL_S)
    seen.problem("lost", f"SIGHUP: the alias {alias} does not stand for {model} after a minute")
    return False


async def _is_gone(link: Connection, model: str) -> None:
    while (await link.call("GET", f"/v1/models/{model}")).status != 404:
        await asyncio.sleep(POLL_S)


async def load_all(seen: Seen, port: int, names: Sequence[str]) -> None:
    link = Connection(port)
    for name in names:
        await seen.ask(link, name, 1, 1)
    link.close()


async def run(task: dict[str, Any]) -> dict[str, Any]:
    seen = Seen(task["letters"])
    if "repeated" in task:
        await repeat(seen, task["port"], task["names"], task["repeated"], task["clients"])
    elif "changing" in task:
        seen.aliases = {task[alias]: Targets(task["targets"][:1]) for alias in ("switched", "configured")}
        until = seen.began + task["seconds"]
        clients = [ask_until(seen, task["port"], task["names"], until, seed) for seed in range(task["clients"])]
        changes = [change(seen, task, until) for change in (load_and_unload, switch_alias, hang_up)]
        await asyncio.gather(*clients, *changes)
    else:
        await load_all(seen, task["port"], task["names"])
    return {**seen.found(), "seconds": time.monotonic() - seen.began}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
