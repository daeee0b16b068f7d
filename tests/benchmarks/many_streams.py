"""Seconds that a step spends in Python while many sequences generate, by phase.

    python tests/benchmarks/many_streams.py MODEL [--streams 256,512] [--steps 20]

Every sequence of a step generates one token, and every token is reported, as for streams. A phase counts the processor
time of the step's thread without calls of compiled operations; "messages" encodes the deltas for the API process.
Medians of the steps; the time of a whole step is that of the fastest, since the machine may be busy.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from quire.engine.build import build_engine
from quire.engine_process.step_loop import StepLoop
from quire.engine_process.wire.protocol import Submit, encode
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request
from quire_bench.profiling.step_profiler import PHASES, StepProfiler
from quire_kernels.cpu.library import load

NATIVE = ("quire_run", "quire_argmax", "quire_sample", "quire_logprobs", "quire_mask_logits", "quire_unpack")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, logprobs": {"temperature": 0.0, "logprobs": 5},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
    "sampled, logprobs": {"temperature": 0.8, "top_p": 0.95, "logprobs": 5},
}
SETTLE_STEPS, SETTLE_S = 3, 5.0


class PythonProfiler(StepProfiler):
    """Phases of steps without compiled operations."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, time.thread_time, _seconds=Counter())

    def python_step(self, loop: StepLoop) -> dict[str, float]:
        """One step of the loop that serves the engine: seconds in Python by phase, and of the whole step."""
        begin = time.perf_counter()
        self._seconds, self._phase, self._since = Counter(), "loop", self.clock()
        loop.step()
        self._enter("loop")
        return {**self._seconds, "python": sum(self._seconds.values()), "whole": time.perf_counter() - begin}

    @contextmanager
    def on_python(self) -> Iterator[None]:
        functions = load().functions
        before = {name: getattr(functions, name) for name in NATIVE}
        for name, function in before.items():
            setattr(functions, name, self._timed(function))
        try:
            with self.on(), self._entering(self.engine, "step", "rest"):
                yield
        finally:
            for name, function in before.items():
                setattr(functions, name, function)

    def _timed(self, function: Any) -> Any:
        def call(*args: Any) -> Any:
            self._seconds[self._phase] += self.clock() - self._since
            found = function(*args)
            self._since = self.clock()
            return found

        return call

    def send(self, message: Any) -> None:
        """Stands in the place of the socket to the API process."""
        phase = self._phase
        self._enter("messages")
        encode(message)
        self._enter(phase)


def measure(engine: Any, streams: int, kind: str, num_steps: int) -> list[dict[str, float]]:
    rng, profiler = random.Random(streams), PythonProfiler(engine)
    loop = StepLoop(profiler.send)
    loop.add(engine, 8192)
    params = SamplingParams(max_tokens=num_steps + 20, ignore_eos=True, stream_interval=1, **KINDS[kind])
    for i in range(streams):
        prompt = Prompt(token_ids=tuple(rng.randint(10, engine.info.vocab_size - 1) for _ in range(rng.randint(8, 16))))
        loop.submit(
            Submit.from_request(
                engine.info.name, Request(id=f"cmpl-{time.monotonic_ns()}-{i}", prompt=prompt, params=params)
            )
        )
    while engine.num_generating < streams:
        loop.step()
    with profiler.on_python():
        for _ in range(SETTLE_STEPS):
            profiler.python_step(loop)
        rows = [profiler.python_step(loop) for _ in range(num_steps)]
    while engine.has_work:
        loop.step()
    return rows


def show(streams: int, kind: str, rows: list[dict[str, float]]) -> None:
    def ms(phase: str) -> float:
        return 1e3 * statistics.median(row.get(phase, 0.0) for row in rows)

    whole, python = 1e3 * min(row["whole"] for row in rows), ms("python")
    phases = ("loop", *PHASES, "rest", "messages")
    print(f"{streams} streams, {kind}: step {whole:.1f} ms, Python {python:.2f} ms = {100 * python / whole:.1f} %")
    print("   " + ", ".join(f"{phase} {ms(phase):.2f}" for phase in phases), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--streams", default="256,512")
    parser.add_argument("--kinds", default=";".join(KINDS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    counts = [int(each) for each in args.streams.split(",")]
    config = ModelConfig(
        model=args.model, dtype="bfloat16", max_model_len=512, max_num_seqs=max(counts), max_num_batched_tokens=8192
    )
    with closing(build_engine(config, registry.load())) as engine:
        measure(engine, 8, "greedy", 1)
        time.sleep(SETTLE_S)  # the KV cache is taken from the system meanwhile
        for streams in counts:
            for kind in args.kinds.split(";"):
                show(streams, kind, measure(engine, streams, kind, args.steps))


if __name__ == "__main__":
    main()
