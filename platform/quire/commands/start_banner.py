"""What `platform serve` prints when it accepts requests: its address, pages, models and adapters, and what to try."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

from quire.server.process.started import PAGES, StartedServer

DEFAULT_URL = "http://127.0.0.1:8000"
"""The server that `platform chat` and `platform top` use without --url."""

NAMES = ("page", "routes", "metrics")
"""What the banner calls the pages."""

MAX_NAMES = 20
"""Adapters of one model that are listed."""


def print_banner(started: StartedServer) -> None:
    """Print the banner to stdout."""
    with suppress(OSError):  # a full disk, or a closed pipe: the server works without
        print("\n".join(banner_lines(started)), flush=True)


def banner_lines(started: StartedServer) -> Iterator[str]:
    """The lines of the banner; the first is `Quire is ready at URL`."""
    yield f"Quire is ready at {started.url}"
    local = _reachable(started.url)
    for name, path in zip(NAMES, PAGES, strict=True):
        if path in started.pages:
            yield f"  {name:8} {local}{path}"
    yield from _models(started)
    yield from _adapters(started)
    yield "  to try"
    yield from (f"    {line}" for line in _to_try(started, local))


def _reachable(url: str) -> str:
    """The URL for this machine: an address that means all interfaces is replaced by a loopback one."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _models(started: StartedServer) -> Iterator[str]:
    if not started.models:
        return
    yield "  models"
    width = max(len(info.name) for info in started.models)
    for info in started.models:
        yield f"    {info.name:{width}}  {', '.join(info.description)}"


def _adapters(started: StartedServer) -> Iterator[str]:
    names = defaultdict(list)
    for adapter in started.adapters:
        names[adapter.model].append(adapter.name)
    if names:
        yield "  adapters"
    for model, several in names.items():
        more = f" and {len(several) - MAX_NAMES} more" if len(several) > MAX_NAMES else ""
        yield f"    of {model}: {', '.join(several[:MAX_NAMES])}{more}"


def _to_try(started: StartedServer, url: str) -> Iterator[str]:
    """Commands that work with what is served."""
    at = "" if url == DEFAULT_URL else f" --url {url}"
    key = " --api-key KEY" if started.requires_key else ""
    if started.chats:
        yield f"platform chat{at and at + '/v1'}{key}"
    elif any("generate" in info.tasks for info in started.models):
        yield f"platform complete{at and at + '/v1'}{key}"
    yield f"platform top{at}{key}"
    header = " -H 'Authorization: Bearer KEY'" if started.requires_key else ""
    for info in started.models:
        request = _request(info.name, info.tasks, info.name in started.chats)
        if request is not None:
            path, body = request
            yield f"curl {url}{path}{header} -H 'Content-Type: application/json' -d '{body}'"
            return


def _request(model: str, tasks: tuple[str, ...], chats: bool) -> tuple[str, str] | None:
    """Path and JSON body of a request to a model; None if one needs a file."""
    if "generate" in tasks and chats:
        return "/v1/chat/completions", f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    if "generate" in tasks:
        return "/v1/completions", f'{{"model": "{model}", "prompt": "Hello"}}'
    if "embed" in tasks:
        return "/v1/embeddings", f'{{"model": "{model}", "input": "Hello"}}'
    if "classify" in tasks:
        return "/classify", f'{{"model": "{model}", "input": "Hello"}}'
    return None
