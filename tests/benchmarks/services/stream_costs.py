"""What many streams cost beside the engine: the same requests offline and streamed over HTTP, all at once.

    python tests/benchmarks/services/stream_costs.py MODEL [--streams 256] [--turns 2] [--input-len 32:256]

For each turn over HTTP it prints seconds of processor time for each token: of the API
process, of the engine process and of the client, which only counts events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

from serving import Server, serving

from quire import LLM, SamplingParams
from quire_bench.workload import BenchRequest, Range

EVENT = b"data: {"


def requests(args: argparse.Namespace, salt: int) -> list[BenchRequest]:
    lengths, ids = random.Random(0), random.Random(salt)
    shapes = [(args.input_len.draw(lengths), args.output_len.draw(lengths)) for _ in range(args.streams)]
    return [BenchRequest(tuple(ids.randint(10, 40_000) for _ in range(n)), m) for n, m in shapes]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client(asyncio.Protocol):
    """Sends one request and counts the events of its answer until the server closes the connection."""

    def __init__(self, request: bytes) -> None:
        self._request, self.events = request, 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.events += data.count(EVENT)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(None)


def sent(args: argparse.Namespace, job: BenchRequest) -> bytes:
    body = {"model": "base", "prompt": job.prompt, "max_tokens": job.output_len, "ignore_eos": True, "stream": True}
    body |= {"temperature": args.temperature, "top_p": 0.95} | ({"logprobs": args.logprobs} if args.logprobs else {})
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def stream(port: int, messages: Sequence[bytes]) -> int:
    """The number of events of all answers."""
    loop = asyncio.get_running_loop()

    async def one(message: bytes) -> int:
        _, client = await loop.create_connection(lambda: Client(message), "127.0.0.1", port)
        await client.ended
        return client.events

    return sum(await asyncio.gather(*map(one, messages)))


def over_http(args: argparse.Namespace, server: Server, salt: int) -> None:
    work = requests(args, salt)
    pids = {"API process": server.process.pid, "engine process": server.engine_pid(), "client": os.getpid()}
    messages = [sent(args, job) for job in work]
    before, begin = {name: cpu_s(pid) for name, pid in pids.items()}, time.perf_counter()
    events = asyncio.run(stream(server.port, messages))
    elapsed = time.perf_counter() - begin
    tokens = sum(job.output_len for job in work)
    costs = ", ".join(f"{name} {1e6 * (cpu_s(pid) - before[name]) / tokens:.0f}" for name, pid in pids.items())
    print(f"HTTP: {elapsed:.2f} s, {events} events for {tokens} tokens; µs of CPU per token: {costs}", flush=True)


def offline(args: argparse.Namespace) -> None:
    llm = LLM(model=args.model, **MODEL, max_num_seqs=args.streams)
    for turn in range(args.turns + 1):
        work = requests(args, turn)[: 8 if turn == 0 else None]
        params = [
            SamplingParams(
                max_tokens=job.output_len,
                ignore_eos=True,
                temperature=args.temperature,
                top_p=0.95,
                logprobs=args.logprobs or None,
            )
            for job in work
        ]
        begin = time.perf_counter()
        llm.generate([{"prompt_token_ids": list(job.prompt)} for job in work], params, use_tqdm=False)
        if turn:
            print(f"offline: {time.perf_counter() - begin:.2f} s", flush=True)


MODEL = {"max_model_len": 512, "dtype": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--input-len", type=Range.parse, default=Range(32, 256))
    parser.add_argument("--output-len", type=Range.parse, default=Range(32, 128))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--logprobs", type=int, default=0)
    parser.add_argument("--only", choices=("offline", "http"))
    args = parser.parse_args()
    if args.only != "http":
        offline(args)
    if args.only != "offline":
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in MODEL.items()]
        with serving(f"base={args.model}", *flags, "--max-num-seqs", args.streams) as server:
            for turn in range(args.turns):
                over_http(args, server, turn + 100)


if __name__ == "__main__":
    main()
