"""llama.cpp as a contender of compare.py: llama_worker.py FOLDER-OF-BINARIES FILE.gguf CORES

W1 goes to a llama-server that runs as long as this process. W2 and W3 are measured by llama-bench, which has no HTTP
and no sampling: its best case. CORES are those of llama.cpp; this process, which is the client, may run on others.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request

from workload import LONG_PROMPT, STREAM_TOKENS, Request, answer_questions, measure, warm_up_requests

HEADERS = (
    "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    "Content-Length: {}\r\n\r\n"
)
SERVER_FLAGS = ("-t", "2", "-tb", "2", "-np", "32", "-c", "12288", "--cache-ram", "0", "-fa", "on")
BENCH_FLAGS = ("-t", "2", "-r", "1", "-o", "json", "-fa", "1")
GREEDY = {"ignore_eos": True, "cache_prompt": False, "samplers": ["top_k"], "top_k": 1, "return_tokens": False}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"llama-server ended with {server.returncode}")


async def complete(port: int, request: Request) -> None:
    body = json.dumps({"prompt": request.prompt, "n_predict": request.max_tokens, **GREEDY})
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(f"{HEADERS.format(len(body))}{body}".encode())
    answer = await reader.read()
    writer.close()
    predicted = json.loads(answer.partition(b"\r\n\r\n")[2])["tokens_predicted"]
    assert predicted == request.max_tokens, f"{predicted} tokens instead of {request.max_tokens}"


async def complete_all(port: int, requests: list[Request]) -> None:
    await asyncio.gather(*(complete(port, request) for request in requests))


def tokens_per_second(command: tuple[str, ...]) -> float:
    """What llama-bench says. Raises RuntimeError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"llama-bench ended with {done.returncode}: {done.stderr[-300:]}")
    return float(json.loads(done.stdout)[-1]["avg_ts"])


def answer(bench: tuple[str, ...], port: int, work: str, rep: int) -> float:
    def run(requests: list[Request]) -> float:
        begin = time.perf_counter()
        asyncio.run(complete_all(port, requests))
        return time.perf_counter() - begin

    if work == "W2":
        return tokens_per_second((*bench, "-p", "0", "-n", str(STREAM_TOKENS), "-d", "64"))
    if work == "W3":
        return LONG_PROMPT / tokens_per_second((*bench, "-p", str(LONG_PROMPT), "-n", "0"))
    return measure(run, work, rep)


def main(folder: str, model: str, cores: str) -> None:
    port, pinned = free_port(), ("taskset", "-c", cores)
    place = ("--host", "127.0.0.1", "--port", str(port))
    command = (*pinned, f"{folder}/llama-server", "-m", model, *SERVER_FLAGS, *place)
    bench = (*pinned, f"{folder}/llama-bench", "-m", model, *BENCH_FLAGS)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(server, port)
            asyncio.run(complete_all(port, warm_up_requests(1, 100, 8)))
            answer_questions(lambda work, rep: answer(bench, port, work, rep))
        finally:
            server.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
