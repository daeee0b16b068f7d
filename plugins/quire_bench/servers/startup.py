"""`bench startup`: seconds from the start of a new server process until it is ready and has answered."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time

import httpx

from quire.commands.remote import OpenAIServer, RemoteError
from quire_bench.report import show, spread
from quire_bench.workload import at_least


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds flags; words after `--` go to `platform serve`."""
    parser.add_argument("--num-iters", type=at_least(1), default=3, help="number of starts to measure")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="maximum time in seconds for a start")
    parser.add_argument("serve_args", nargs="*", metavar="-- SERVE_ARGS", help="arguments for `platform serve`")


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_health(url: str, process: subprocess.Popen[bytes], deadline: float) -> None:
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise RemoteError(f"The server ended with status {process.returncode} before it was ready.")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise RemoteError("The server was not ready in time; raise --timeout-s.")


def _one_start(serve_args: list[str], timeout_s: float) -> tuple[float, float]:
    """Seconds to /health 200, and to the first token of a first request."""
    port = free_port()
    command = [sys.executable, "-m", "quire.cli", "serve", *serve_args, "--port", str(port), "--host", "127.0.0.1"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _await_health(url, process, start + timeout_s)
        ready_s = time.perf_counter() - start
        remote = OpenAIServer(f"{url}/v1")
        body = {"model": remote.first_model(), "prompt": [10, 11, 12], "max_tokens": 1}
        next(remote.stream("/completions", body))
        return ready_s, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def run(args: argparse.Namespace) -> int:
    """Starts a server, sends a request and stops the server, repeatedly."""
    starts = []
    for number in range(1, args.num_iters + 1):
        ready, first = _one_start(args.serve_args, args.timeout_s)
        starts.append((ready, first))
        print(
            f"start {number} of {args.num_iters}: ready after {ready:.2f} s, first token after {first:.2f} s",
            file=sys.stderr,
        )
    figures = {
        **spread("ready", [ready for ready, _ in starts], "s"),
        **spread("first_token", [first for _, first in starts], "s"),
    }
    show("startup", figures, args.output_json)
    return 0
