"""Counts the files of this repository that one chat request and one engine step pass through.

python tests/repository/trace_request.py             the two counts; exit status 1 if one is over its limit
python tests/repository/trace_request.py --list      and the files
python tests/repository/trace_request.py --stream    of a streamed request

The server runs in this process with a demo model, its engine in another process, as in production. After a warm-up
request, the functions that are entered during each of several requests are recorded in both processes. A file counts if
all requests pass through it, so that periodic background work does not; engine steps are counted apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = tuple(str(ROOT / root) for root in ("platform", "kernels", "models", "adapters", "plugins"))
MAX_REQUEST_FILES, MAX_STEP_FILES = 60, 30
NUM_REQUESTS = 4
ENGINE_MODULE = "quire.engine_process.process"
STEP_FILE, STEP = "platform/quire/engine/engine.py", "Engine.step"
REPORT_FILE = "QUIRE_TRACE_FILE"
BODY = {"messages": [{"role": "user", "content": "Tell me of a lighthouse."}], "max_tokens": 16, "temperature": 0.7}


@dataclass
class Recorder:
    """Records the files whose functions are entered, for each request and for each engine step.

    requests: one set for each call of `begin`, without what is entered inside steps.
    """

    on: bool = False
    requests: list[set[str]] = field(default_factory=list)
    steps: list[set[str]] = field(default_factory=list)
    _names: dict[CodeType, str] = field(default_factory=dict)
    _step: FrameType | None = None
    _stepping: int = 0

    def install(self, threads: str = "") -> None:
        """Watch this thread, and those yet to be started whose names begin with `threads`."""

        def on_first_event(*_: object) -> None:
            watched = threading.current_thread().name.startswith(threads)
            sys.setprofile(self._on_event if watched else None)

        threading.setprofile(on_first_event)
        sys.setprofile(self._on_event)

    def begin(self) -> None:
        """Begin the set of a new request."""
        self.requests.append(set())
        self.on = True

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame is self._step:
            self._step = None
        if not self.on or event != "call":
            return
        code = frame.f_code
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = own_file(code)
        if not name:
            return
        if code.co_qualname == STEP and name == STEP_FILE:
            self._step, self._stepping = frame, threading.get_ident()
            self.steps.append(set())
        in_step = self._step is not None and self._stepping == threading.get_ident()
        (self.steps[-1] if in_step else self.requests[-1]).add(name)


def own_file(code: CodeType) -> str:
    """The file of a function, relative to the repository; "" for other libraries, and for bodies of modules."""
    own = code.co_filename.startswith(SOURCES) and code.co_name != "<module>"
    return code.co_filename.removeprefix(f"{ROOT}/") if own else ""


def run_engine_process() -> None:
    """The engine process: SIGUSR1 begins the set of a request, SIGUSR2 writes the report."""
    recorder = Recorder()

    def report(*_: object) -> None:
        recorder.on = False
        found = [[sorted(files) for files in sets] for sets in (recorder.requests, recorder.steps)]
        target = Path(os.environ[REPORT_FILE])
        target.with_suffix(".part").write_text(json.dumps(found))
        target.with_suffix(".part").rename(target)

    signal.signal(signal.SIGUSR1, lambda *_: recorder.begin())
    signal.signal(signal.SIGUSR2, report)
    recorder.install("reader")
    runpy.run_module(ENGINE_MODULE, run_name="__main__", alter_sys=True)


async def trace(stream: bool, report: Path) -> tuple[set[str], set[str]]:
    """The files of a request, and those of its largest step."""
    import httpx

    from quire.engine_process.client import EngineClient
    from quire.hooks import registry as plugins
    from quire.hooks.demos import from_demo
    from quire.server.app import build_app
    from quire.server.connections.listen import bind, url_of
    from quire.server.process.frontend_loader import FrontendLoader
    from quire.server.process.serve import DrainingServer
    from quire.settings.model_config import ModelConfig
    from quire.settings.server_config import ServerConfig

    recorder = Recorder()
    recorder.install()
    config = ServerConfig(port=0, disable_access_log=True, log_level="warning")
    registry = plugins.load(None)
    models = [from_demo(ModelConfig(model="demo-chat"), registry)]
    client = await EngineClient.start(models, None, module="trace_request", log_level="warning")
    served = FrontendLoader(config, registry).load(models, client.models())
    listener, started = bind(config), asyncio.Event()
    server = DrainingServer(build_app(client, config, registry, served), config)
    server.on_started = started.set
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await started.wait()
    assert client.engine_pid is not None
    async with httpx.AsyncClient(base_url=url_of(listener, config), timeout=60) as http:
        await post(http, stream)
        for _ in range(NUM_REQUESTS):
            recorder.begin()
            os.kill(client.engine_pid, signal.SIGUSR1)
            await post(http, stream)
        recorder.on = False
        os.kill(client.engine_pid, signal.SIGUSR2)
        while not report.exists():
            await asyncio.sleep(0.01)  # polling another process, not ordering anything
    server.should_exit = True
    await serving
    await client.close()
    requests, steps = json.loads(report.read_text())
    files = set.intersection(*recorder.requests) | set.intersection(*map(set, requests))
    return files, max(map(set, steps), key=len)


async def post(http: Any, stream: bool) -> None:
    answer = await http.post("/v1/chat/completions", json={**BODY, "stream": stream})
    answer.raise_for_status()


def main(arguments: list[str]) -> int:
    """Print the counts; 1 if one is over its limit."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "engine.json")
        os.environ[REPORT_FILE] = str(report)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
        )
        files, step = asyncio.run(trace("--stream" in arguments, report))
    for what, found, most in (("a chat request", files, MAX_REQUEST_FILES), ("one engine step", step, MAX_STEP_FILES)):
        print(f"{len(found):5}  files that {what} passes through, of at most {most}")
        if "--list" in arguments:
            print(*(f"       {name}" for name in sorted(found)), sep="\n")
    return 1 if len(files) > MAX_REQUEST_FILES or len(step) > MAX_STEP_FILES else 0


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].isdigit():
        run_engine_process()
    else:
        sys.exit(main(sys.argv[1:]))
