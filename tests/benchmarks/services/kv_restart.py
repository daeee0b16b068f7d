"""Time to the first token of a prompt that a server has seen before it was killed, beside that of a new prompt.

    python tests/benchmarks/services/kv_restart.py MODEL_FOLDER [--tokens 2000] [--repeats 3]

Starts `platform serve` with `--kv-disk`, asks with prompts of random tokens, kills the server with SIGKILL, starts it
again, and asks again. Prints the times and whether the answers are the same tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 600.0
MAX_TOKENS = 16


@contextmanager
def server(model: str, folder: str, extra: list[str]) -> Iterator[str]:
    """A running server, which is killed at the end. Yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "quire.cli", "serve", model, "--served-model-name", "m", "--port", str(port)]
    command += ["--kv-disk", folder, "--log-level", "warning", "--disable-access-log", *extra]
    process = subprocess.Popen(command, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(address, process)
        yield address
    finally:
        process.send_signal(signal.SIGKILL)  # the engine process ends with it
        process.wait()


def wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def ask(address: str, prompt: list[int]) -> tuple[float, list[int], int]:
    """(seconds to the first token, tokens, cached tokens)."""
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began, first, tokens, cached = time.perf_counter(), None, list[int](), 0
    with urllib.request.urlopen(request, timeout=START_S) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line[6:])
            for choice in event["choices"]:
                if choice.get("token_ids"):
                    first = first or time.perf_counter() - began
                    tokens += choice["token_ids"]
            if event.get("usage"):
                cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    assert first is not None, "no token came"
    return first, tokens, cached


def wait_for_digest(folder: str) -> None:
    """Wait for the digest of the checkpoint, the first file: pages that are computed before it are not kept."""
    deadline = time.monotonic() + START_S
    while not any(Path(folder).glob("??/*")):
        if time.monotonic() > deadline:
            raise SystemExit("the digest of the checkpoint was not written")
        time.sleep(0.05)


def settle(folder: str) -> None:
    """Wait until no more pages are written."""
    count, since = -1, time.monotonic()
    while time.monotonic() - since < 2:
        now = sum(1 for _ in Path(folder).glob("??/*"))
        if now != count:
            count, since = now, time.monotonic()
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=10_000, help="tokens are drawn from the first so many")
    args, extra = parser.parse_known_args()
    extra = [*extra, "--enable-prompt-tokens-details"]
    rng = random.Random(0)
    prompts = [[rng.randrange(100, args.vocab) for _ in range(args.tokens)] for _ in range(args.repeats + 1)]
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = [], []
        with server(args.model, folder, extra) as address:
            ask(address, prompts[-1])  # the first request of a process is slower
            wait_for_digest(folder)
            for prompt in prompts[:-1]:
                cold.append(ask(address, prompt))
            settle(folder)
        with server(args.model, folder, extra) as address:
            ask(address, prompts[-1][: args.tokens // 2])
            for prompt in prompts[:-1]:
                warm.append(ask(address, prompt))
    times = [statistics.median(each[0] for each in answers) for answers in (cold, warm)]
    print(f"prompt of {args.tokens} tokens, {args.repeats} times")
    print(f"cold:            {times[0] * 1e3:8.1f} ms to the first token, cached {[each[2] for each in cold]}")
    print(f"after a restart: {times[1] * 1e3:8.1f} ms to the first token, cached {[each[2] for each in warm]}")
    print(f"ratio:           {times[1] / times[0]:8.3f}")
    print(f"same tokens:     {[a[1] for a in cold] == [b[1] for b in warm]}")


if __name__ == "__main__":
    main()
