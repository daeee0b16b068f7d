"""Starts `platform serve` as a user would, for tests: a real process on a free port."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

READY_WITHIN_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log
        self.url = f"http://127.0.0.1:{port}"

    def output(self):
        return Path(self.log).read_text()

    def wait_ready(self):
        until = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.output()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            except httpx.HTTPError:
                pass
            time.sleep(0.05)  # polling an outside process, not ordering anything
        raise RuntimeError(f"the server was not ready in {READY_WITHIN_S} s:\n{self.output()}")

    def stop(self, sign=signal.SIGTERM, within_s=60):
        if self.process.poll() is None:
            self.process.send_signal(sign)
        return self.process.wait(within_s)


def command(*words, python=sys.executable):
    return [str(python), "-m", "quire.cli", *map(str, words)]


@contextmanager
def serving(*words, env=None, ready=True, python=sys.executable):
    """`platform serve WORDS --port FREE`, ready to answer; stopped afterwards."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(
            command("serve", *words, "--port", port, python=python),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})},
        )
        server = Server(process, port, log.name)
        try:
            yield server.wait_ready() if ready else server
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
