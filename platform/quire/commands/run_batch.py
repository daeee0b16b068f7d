"""`platform run-batch`: processes a file of requests without a server.

Each line is a JSON object in the format of OpenAI's batch files: custom_id, method, url, body. The requests go through
the application that also serves HTTP, and each result is written when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from quire.commands.models import chosen_models
from quire.errors import BadRequest, ConfigError
from quire.log_format import log_to_stderr
from quire.records import Command
from quire.settings.model_config import ModelConfig
from quire.settings.options import add_config, model_list
from quire.settings.residency_config import RESIDENCY_SETTINGS
from quire.settings.server_config import ServerConfig
from quire.types.batch_line import answer_line, custom_id_of, error_line, parse_line

JSON = {"Content-Type": "application/json"}

DESCRIPTION = """\
Process a file of requests without a server. Each line is a JSON object, as in OpenAI's batch files.

input:   {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
output:  {"id": "batch_req_...", "custom_id": "1", "response": {"status_code": 200, "body": {...}}, "error": null}

Results are written when they are ready, not in the order of the requests; use custom_id to match them. The exit
status is 0 if every request succeeded, 1 if some failed (see their lines), and 2 if the batch could not start.

example:
  platform run-batch demo-chat -i requests.jsonl -o results.jsonl

docs/serving.md describes the fields."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("models_given", nargs="*", metavar="MODEL", help="folder, hub id, demo, or name=folder")
    parser.add_argument("--models", type=model_list, default=[], metavar="JSON", help="models with individual settings")
    parser.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="file of requests, one JSON object per line"
    )
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help="file for the results")
    parser.add_argument("--max-concurrency", type=int, default=256, help="maximum number of requests at a time")
    add_config(parser, ModelConfig, skip=RESIDENCY_SETTINGS)


async def process_lines(app: Any, lines: Sequence[bytes], output: IO[bytes], max_concurrency: int) -> int:
    """Send every line through the application, with a progress bar on a terminal; returns the number of failures."""
    import httpx
    from tqdm import tqdm

    semaphore, num_failed = asyncio.Semaphore(max_concurrency), 0
    progress = tqdm(total=len(lines), unit="request", disable=None)  # None: only on a terminal
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as http:

        async def process(text: bytes) -> None:
            nonlocal num_failed
            async with semaphore:
                try:
                    line = parse_line(text)
                    reply = await http.post(line.url, content=line.body, headers=JSON)
                    request_id = reply.headers.get("x-request-id", "")
                    result = answer_line(line.custom_id, reply.status_code, reply.content, request_id)
                    num_failed += reply.status_code >= 400
                except BadRequest as error:
                    result = error_line(custom_id_of(text), error)
                    num_failed += 1
            _write(output, result)
            progress.update()

        with progress:
            await asyncio.gather(*(process(text) for text in lines))
    return num_failed


def _write(output: IO[bytes], line: bytes) -> None:
    """Write a line. Raises ConfigError if the disk is full; the file then ends with the last whole line."""
    begin = output.tell() if output.seekable() else None
    try:
        written = 0
        while written < len(line):
            written += output.write(line[written:]) or 0
    except OSError as error:
        if begin is not None:
            output.truncate(output.seek(begin))
        raise ConfigError(f"--output-file {output.name} cannot be written: {error.strerror}.") from error


async def _load_and_process(args: argparse.Namespace, lines: Sequence[bytes], output: IO[bytes]) -> int:
    from quire.engine_process.client import EngineClient
    from quire.server.app import build_app
    from quire.server.process.serve import load_frontends

    models, config = chosen_models(vars(args), args.registry), ServerConfig()
    client = await EngineClient.start(
        models,
        args.plugins,
        options=args.registry.options,
        enable_lora=bool(args.enable_lora),
        log_level=config.log_level,
    )
    try:
        served = await asyncio.to_thread(load_frontends, models, client.models(), config, args.registry)
        app = build_app(client, config, args.registry, served)
        return await process_lines(app, lines, output, args.max_concurrency)
    finally:
        await client.close()


def _run(args: argparse.Namespace) -> int:
    try:
        text = Path(args.input_file).read_bytes()
    except OSError as error:
        raise ConfigError(f"--input-file {args.input_file} cannot be read: {error}.") from error
    lines = [line for line in text.splitlines() if line.strip()]
    log_to_stderr()
    with ExitStack() as stack:
        try:
            output = stack.enter_context(open(args.output_file, "wb", buffering=0))
        except OSError as error:
            raise ConfigError(f"--output-file {args.output_file} cannot be written: {error}.") from error
        num_failed = asyncio.run(_load_and_process(args, lines, output))
    print(f"{len(lines)} requests, {num_failed} failed; results are in {args.output_file}", file=sys.stderr)
    return 1 if num_failed else 0


COMMAND = Command("run-batch", "process a JSONL file of requests without a server", _configure, _run)
