"""Attacks on what surrounds the server: memory, the clock, the network and files of media. Needs root, and libfaketime.

    python tests/attack/sandbox.py [memory] [clock] [network] [files]

Prints attack, result and verdict; exit status 1 if one fails. Hostile adapters, a full disk: `files.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from demos import FLAGS, post
from findings import all_findings
from serving import serving
from stalls import sent

from quire.errors import QuireError
from quire.hooks.registry import load
from quire.media.fetching import addresses
from quire.media.fetching.fetcher import Fetcher
from quire.media.fetching.local import read_file_url
from quire.media.limits import Budget, MediaLimits
from quire.settings.model_config import ModelConfig

CGROUP = Path("/sys/fs/cgroup/memory/quire-attack")
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
ASK = {"model": "demo-chat", "prompt": "Once", "max_tokens": 8, "temperature": 0}
failed: list[str] = []


def row(attack: str, result: str, good: bool) -> None:
    print(f"| {attack} | {result[:150]} | {'holds' if good else 'FAIL'} |", flush=True)
    failed.extend([] if good else [attack])


@contextmanager
def limited(size: int) -> Iterator[None]:
    """What starts inside may use so much memory together."""
    CGROUP.mkdir(exist_ok=True)
    (CGROUP / "memory.limit_in_bytes").write_text(str(size))
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (CGROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):
            CGROUP.rmdir()


def memory() -> None:
    """All demos within 2 GiB, and the requests that once took gigabytes."""
    with limited(2 << 30), serving(*FLAGS) as server:
        (CGROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        right, engine = post(server, "/v1/completions", ASK)["choices"][0]["text"], server.engine_pid()
        words = ("/tokenize", "n 128", "9400", "[[],[]", "2048 long texts", "echo", "parts", "escapes", "top_logprobs")
        for case in all_findings():
            if any(word in case.name for word in words):
                answer = asyncio.run(sent(server.port, case, 150))
                alive = server.process.poll() is None and server.engine_pid() == engine
                row(f"2 GiB: {case.name}", f"{answer.status} after {answer.seconds:.1f} s", alive and answer.status > 0)
                if not alive:
                    return
        peak = int((CGROUP / "memory.max_usage_in_bytes").read_text()) >> 20
        same = post(server, "/v1/completions", ASK)["choices"][0]["text"] == right
        row("2 GiB: afterwards", f"{'the right answer' if same else 'a wrong answer'}; peak {peak} MiB", same)


def clock() -> None:
    """The wall clock jumps by a day, forwards and backwards, while requests run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "time"
        file.write_text("+0\n")
        env = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}
        with serving(*FLAGS, env={**env, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}) as server:
            right, engine = post(server, "/v1/completions", ASK)["choices"][0]["text"], server.engine_pid()
            for jump in ("+1d", "-1d", "+3650d", "+0"):
                results: list[bool] = []

                def ask(results: list[bool] = results) -> None:
                    for _ in range(30):
                        results.append(post(server, "/v1/completions", ASK)["choices"][0]["text"] == right)

                threads = [threading.Thread(target=ask) for _ in range(4)]
                for thread in threads:
                    thread.start()
                file.write_text(jump + "\n")
                for thread in threads:
                    thread.join()
                time.sleep(2)
                good = len(results) == 120 and all(results) and server.engine_pid() == engine
                days = round((post(server, "/v1/completions", ASK)["created"] - time.time()) / 86400)
                good = good and days == {"+1d": 1, "-1d": -1, "+3650d": 3650, "+0": 0}[jump]
                row(
                    f"the clock jumps by {jump} under load", f"{sum(results)} of 120 answers right, {days:+} days", good
                )


class Site(BaseHTTPRequestHandler):
    """Answers with a redirect to what its path says after /to/, else with a few bytes."""

    hits: list[str] = []  # noqa: RUF012 - of all connections

    def do_GET(self) -> None:
        self.hits.append(self.server.server_address[0])
        target = self.path.partition("/to/")[2]
        self.send_response(302 if target else 200)
        if target:
            self.send_header("Location", target)
        self.send_header("Content-Length", "0" if target else "6")
        self.end_headers()
        self.wfile.write(b"" if target else b"secret")

    def log_message(self, *_: object) -> None:
        pass


def network() -> None:
    """Names that change their address, and redirects, with real sockets: 127.0.0.2 plays the public internet."""
    public = addresses.is_public
    sites = {host: ThreadingHTTPServer((host, 0), Site) for host in ("127.0.0.1", "127.0.0.2")}
    for site in sites.values():
        threading.Thread(target=site.serve_forever, daemon=True).start()
    port, inner = sites["127.0.0.2"].server_port, sites["127.0.0.1"].server_port
    looked_up: list[str] = []

    def resolve(host: str, _: int) -> list[str]:
        looked_up.append(host)
        if host == "changes.test":  # public when it is checked, private at the next look
            return ["127.0.0.2"] if looked_up.count(host) == 1 else ["127.0.0.1"]
        named = {"outside.test": ["127.0.0.2"], "inside.test": ["127.0.0.1"], "both.test": ["127.0.0.2", "127.0.0.1"]}
        return named.get(host) or addresses.resolve(host, 80)

    addresses.is_public = lambda address: address == "127.0.0.2" or public(address)  # type: ignore[assignment]
    out, inside = f"http://outside.test:{port}", f"http://127.0.0.1:{inner}"
    urls = {
        "a public host": (f"{out}/", True),
        "a name that changes its address after the check": (f"http://changes.test:{port}/", True),
        "the same name asked again": (f"http://changes.test:{inner}/", False),
        "a name with a public and a private address": (f"http://both.test:{inner}/", False),
        "a private name": (f"http://inside.test:{inner}/", False),
        "a redirect to a private address": (f"{out}/to/{inside}/", False),
        "a redirect to a private name": (f"{out}/to/http://inside.test:{inner}/", False),
        "a redirect to a number": (f"{out}/to/http://2130706433:{inner}/", False),
        "a redirect to IPv6 around IPv4": (f"{out}/to/http://[::ffff:127.0.0.1]:{inner}/", False),
        "a redirect to a file": (f"{out}/to/file:///etc/passwd", False),
        "redirects without end": (f"{out}/to/" + f"{out}/to/" * 6, False),
        "the metadata service": ("http://169.254.169.254/latest/meta-data/", False),
    }
    limits = MediaLimits.from_config(ModelConfig(model="x", media_timeout_s=3), load())
    with ThreadPoolExecutor(2) as threads:
        for name, (url, allowed) in urls.items():
            Site.hits.clear()
            try:
                asyncio.run(Fetcher(limits, threads, resolve).fetch(url, Budget(1000)))
                result, fetched = "fetched", True
            except QuireError as error:
                result, fetched = str(error), False
            private = Site.hits.count("127.0.0.1")
            row(name, f"{private} private connections; {result}", fetched == allowed and not private)
    addresses.is_public = public  # type: ignore[assignment]
    for site in sites.values():
        site.shutdown()


def files() -> None:
    """file: URLs, with a permitted folder."""
    with tempfile.TemporaryDirectory() as root:
        folder, outside = Path(root).resolve() / "media", Path(root).resolve() / "secret"
        folder.mkdir()
        outside.write_text("secret")
        (folder / "good").write_text("good")
        (folder / "link").symlink_to(outside)
        (folder / "up").symlink_to(folder.parent)
        (folder / "proc").symlink_to("/proc/self/environ")
        (folder / "zero").symlink_to("/dev/zero")
        os.mkfifo(folder / "pipe")
        (folder / "large").touch()
        os.truncate(folder / "large", 1 << 40)
        paths = [
            "good",
            "link",
            "up/secret",
            "proc",
            "zero",
            "pipe",
            "large",
            "../secret",
            "%2e%2e/secret",
            ".",
            "no",
            "%00",
        ]
        for path in [*paths, "good/../../secret"]:
            begin = time.monotonic()
            try:
                result = repr(read_file_url(f"file://{folder}/{path}", folder, Budget(1 << 20)))
            except QuireError as error:
                result = f"{type(error).__name__}: {error}"
            good = ("secret" not in result.split("'")[0:2][-1] or ":" in result) and time.monotonic() - begin < 1
            row(f"file: {path}", result, good and (path == "good") == (result == "b'good'"))


def main() -> int:
    attacks = {"memory": memory, "clock": clock, "network": network, "files": files}
    parser = argparse.ArgumentParser(description="Attacks with memory, the clock, the network and files.")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {', '.join(attacks)}; all by default")
    chosen = parser.parse_args().attacks or list(attacks)
    print("| attack | result | verdict |\n|---|---|---|")
    for name in chosen:
        attacks[name]()
    print(f"{len(failed)} fail: {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
