"""`platform run-batch`: answer a file of requests, one JSON object a line, without a server.

Lines are those of OpenAI's batch files: custom_id, method, url, body. Each goes through the same
application as over HTTP; answers are written as they come, a line each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from quire.commands.models import chosen_models
from quire.config import ModelConfig
from quire.errors import BadRequest, ConfigError
from quire.log_format import log_to_stderr
from quire.options import add_config, model_list
from quire.records import Command
from quire.server_config import ServerConfig

URLS = (
    *("/v1/chat/completions", "/v1/completions", "/generate", "/tokenize"),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
MAX_LINE_BYTES = 32 << 20

DESCRIPTION = """\
Answer a file of requests without a server: one JSON object a line, as in OpenAI's batch files.

input:   {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
output:  {"id": "batch-...", "custom_id": "1", "response": {"status_code": 200, "body": {...}}, "error": null}

Answers are written as they come, not in the order of the requests; custom_id tells them apart. The exit status is
0 if every request was answered, 1 if some failed (their lines say why), 2 if none could be tried.

example:
  platform run-batch demo-chat -i requests.jsonl -o answers.jsonl

docs/serving.md describes the fields."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("models_given", nargs="*", metavar="MODEL", help="folder, hub id, demo, or name=folder")
    parser.add_argument("--models", type=model_list, default=[], metavar="JSON", help="models with their own settings")
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help="requests, one JSON object a line")
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help="where the answers go")
    parser.add_argument("--max-concurrency", type=int, default=256, help="most requests in flight")
    add_config(parser, ModelConfig)


def _check(text: str) -> dict[str, Any]:
    """A line as a request; BadRequest says what is wrong with it."""
    if len(text) > MAX_LINE_BYTES:
        raise BadRequest(f"The line has more than {MAX_LINE_BYTES} bytes.")
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The line is not JSON: {error}.") from error
    if not isinstance(line, dict) or not isinstance(line.get("body"), dict):
        raise BadRequest("The line must be an object with custom_id, method, url and body.")
    if line.get("method", "POST") != "POST":
        raise BadRequest(f"`method` must be POST; got {line['method']!r}.", "method")
    if line.get("url") not in URLS:
        raise BadRequest(f"`url` must be one of {', '.join(URLS)}; got {line.get('url')!r}.", "url")
    if line["body"].get("stream"):
        raise BadRequest("`stream` cannot be used in a batch.", "stream")
    if line["body"].get("encoding_format") in ("bytes", "bytes_only"):
        raise BadRequest("`encoding_format` must be float or base64 in a batch.", "encoding_format")
    return line


def _answer(line: Any, status: int, body: Any, request_id: str) -> dict[str, Any]:
    response = {"status_code": status, "request_id": request_id, "body": body}
    custom_id = line.get("custom_id") if isinstance(line, dict) else None
    return {"id": f"batch-{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": None}


def _refusal(text: str, error: BadRequest) -> dict[str, Any]:
    try:
        custom_id = json.loads(text)["custom_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        custom_id = None
    fault = {"message": error.message, "type": error.type, "param": error.param, "code": error.status}
    return {"id": f"batch-{uuid.uuid4().hex}", "custom_id": custom_id, "response": None, "error": fault}


async def answer_lines(app: Any, lines: Sequence[str], output: IO[str], max_concurrency: int) -> int:
    """Send every line through the application, with a progress bar on a terminal; the number of lines that failed."""
    import httpx
    from tqdm import tqdm

    gate, num_failed = asyncio.Semaphore(max_concurrency), 0
    progress = tqdm(total=len(lines), unit="request", disable=None)  # None: only on a terminal
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as http:

        async def one(text: str) -> None:
            nonlocal num_failed
            async with gate:
                try:
                    line = _check(text)
                    reply = await http.post(line["url"], json=line["body"])
                    answer = _answer(line, reply.status_code, reply.json(), reply.headers.get("x-request-id", ""))
                    num_failed += reply.status_code >= 400
                except BadRequest as error:
                    answer = _refusal(text, error)
                    num_failed += 1
            output.write(json.dumps(answer) + "\n")
            output.flush()
            progress.update()

        with progress:
            await asyncio.gather(*(one(text) for text in lines))
    return num_failed


async def _serve_lines(args: argparse.Namespace, lines: Sequence[str], output: IO[str]) -> int:
    from quire.host.client import Client
    from quire.server.app import build_app
    from quire.server.run import text_sides

    models, config = chosen_models(vars(args), args.registry), ServerConfig()
    client = await Client.start(
        models,
        args.plugins,
        options=args.registry.options,
        enable_lora=bool(args.enable_lora),
        log_level=config.log_level,
    )
    try:
        served = await asyncio.to_thread(text_sides, models, client.models(), config, args.registry)
        app = build_app(client, config, args.registry, served)
        return await answer_lines(app, lines, output, args.max_concurrency)
    finally:
        await client.close()


def _run(args: argparse.Namespace) -> int:
    try:
        text = Path(args.input_file).read_text()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--input-file {args.input_file} cannot be read: {error}.") from error
    lines = [line for line in text.splitlines() if line.strip()]
    log_to_stderr()
    with ExitStack() as stack:
        try:
            output = stack.enter_context(open(args.output_file, "w"))
        except OSError as error:
            raise ConfigError(f"--output-file {args.output_file} cannot be written: {error}.") from error
        num_failed = asyncio.run(_serve_lines(args, lines, output))
    print(f"{len(lines)} requests, {num_failed} failed; answers are in {args.output_file}", file=sys.stderr)
    return 1 if num_failed else 0


COMMAND = Command("run-batch", "answer a JSONL file of requests", _configure, _run)
