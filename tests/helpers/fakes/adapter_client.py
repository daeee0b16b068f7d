"""A client of a server with adapters, and adapters that load when a test says so."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from serving import POLL_S


class AdapterClient:
    """Calls the routes; `key` is sent as bearer token."""

    def __init__(self, url: str, key: str = "") -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, timeout=120, headers=headers)

    def load(self, name: str, path: Path | str, **more: Any) -> httpx.Response:
        return self.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more})

    def unload(self, name: str) -> httpx.Response:
        return self.http.post("/v1/unload_lora_adapter", json={"lora_name": name})

    def rows(self) -> list[dict[str, Any]]:
        reply = self.http.get("/v1/adapters")
        assert reply.status_code == 200, reply.text
        rows: list[dict[str, Any]] = reply.json()["data"]
        return rows

    def row(self, name: str) -> dict[str, Any]:
        """The one that requests mean by the name."""
        (found,) = [row for row in self.rows() if row["id"] == name and row["state"] != "retired"]
        return found

    def when(self, name: str, state: str) -> dict[str, Any]:
        """Ask until an adapter is in a state."""
        while (row := self.row(name))["state"] != state:
            assert row["state"] == "loading", row
            time.sleep(POLL_S)
        return row

    def forget_all(self) -> None:
        for row in self.rows():
            if row["state"] != "retired":
                assert self.unload(row["id"]).status_code == 200

    def complete(
        self, model: str | None, prompt: str | Sequence[int] = "x", count: int = 8, **more: Any
    ) -> httpx.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, **more}
        return self.http.post("/v1/completions", json=body)

    def text(self, model: str | None, **more: Any) -> str:
        reply = self.complete(model, **more)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["text"]
        return text

    def ids(self, model: str | None, prompt: Sequence[int], count: int = 12, **more: Any) -> list[int]:
        """The tokens of an answer."""
        reply = self.complete(model, list(prompt), count, return_token_ids=True, **more)
        assert reply.status_code == 200, reply.text
        ids: list[int] = reply.json()["choices"][0]["token_ids"]
        return ids

    @contextmanager
    def stream(self, model: str, count: int, prompt: str = "x", **more: Any) -> Iterator[Iterator[str]]:
        """A request in flight: the pieces of its answer, as they come."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            **more,
        }
        with self.http.stream("POST", "/v1/completions", json=body) as reply:
            assert reply.status_code == 200
            yield _pieces(reply)


def _pieces(reply: httpx.Response) -> Iterator[str]:
    for line in reply.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


def error_of(reply: httpx.Response) -> tuple[int, str, str, str | None]:
    """Status, type, message and param of a refusal."""
    error = reply.json()["error"]
    assert error["code"] == reply.status_code
    return reply.status_code, error["type"], error["message"], error["param"]


class Release:
    """Lets processes go on that were stopped."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def set(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def held_back(server: Any) -> Iterator[Release]:
    """No file of an adapter is read until the release is set: the processes that would do it are stopped."""
    pids = [int(entry) for entry in filter(str.isdigit, os.listdir("/proc")) if reads_files(int(entry), server)]
    assert pids, "there is one that was started beforehand"
    release = Release(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield release
    finally:
        release.set()


def reads_files(pid: int, server: Any) -> bool:
    """Whether a process reads the files of adapters for the server."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
        return int(parent) == server.engine_pid() and "isolated_process" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended meanwhile
        return False
