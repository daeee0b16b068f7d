"""Starts `platform serve` as a user would, for tests: a real process on a free port."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

READY_WITHIN_S = 120

POLL_S = 0.02
"""Time between two looks at another process, which needs the core meanwhile; it orders nothing."""


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
            time.sleep(POLL_S)
        raise RuntimeError(f"the server was not ready in {READY_WITHIN_S} s:\n{self.output()}")

    def engine_pid(self):
        """The pid of the engine process; None while it is being replaced."""
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
                if (
                    int(parent) == self.process.pid
                    and "quire.engine_process" in Path(f"/proc/{entry}/cmdline").read_text()
                ):
                    return int(entry)
            except OSError:  # it has ended meanwhile
                continue
        return None

    def await_engine_pid(self, other_than=None):
        """The pid of the engine process, once there is one other than this."""
        while (found := self.engine_pid()) in (other_than, None):
            assert self.process.poll() is None, self.output()
            time.sleep(POLL_S)
        return found

    def host_bytes(self):
        """Resident memory of that process."""
        return int(Path(f"/proc/{self.await_engine_pid()}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill_engine(self):
        """Kill it, and wait for the next one: until the server starts that, it may not have noticed yet."""
        killed = self.await_engine_pid()
        with suppress(ProcessLookupError):  # it has ended meanwhile, and is being replaced
            os.kill(killed, signal.SIGKILL)
        self.await_engine_pid(other_than=killed)
        return self.wait_ready()

    def stop(self, sign=signal.SIGTERM, within_s=60):
        if self.process.poll() is None:
            self.process.send_signal(sign)
        return self.process.wait(within_s)


def command(*words, python=sys.executable):
    return [str(python), "-m", "quire.cli", *map(str, words)]


@contextmanager
def serving(*words, env=None, ready=True, python=sys.executable):
    """`platform serve WORDS --port FREE`, ready to answer; stopped afterwards.

    Forked, with what it starts (`forked_popen`), but for tests with the fixture `fresh_processes`.
    """
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
