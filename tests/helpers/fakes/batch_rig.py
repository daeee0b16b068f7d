"""An application with the batches plugin over a pretended client, in this process."""

import asyncio
import contextlib
import json

import openai
from fake_client import PretendClient, http, pretend_app

import quire_batches
from quire.records import Registry
from quire.settings.server_config import ServerConfig

DEFAULTS = {option.name: option.default for option in quire_batches.quire_options()}
(ROUTER,) = quire_batches.quire_routers()


def registry(folder, **options):
    given = {"batches": {**DEFAULTS, "folder": str(folder), **options}}
    return Registry(
        records={"quire_routers": {"batches": ROUTER}}, origin={("quire_routers", "batches"): "batches"}, options=given
    )


@contextlib.asynccontextmanager
async def running(folder, pretend=None, *, keys=(), key="none", **options):
    """An `openai` client of an application whose lifespan has begun; `client.app` is the application."""
    config = ServerConfig(api_key=tuple(keys))
    made = registry(folder / "batches", **options)
    app = pretend_app(folder, pretend or PretendClient(reply="Hello"), config, made)
    async with (
        app.router.lifespan_context(app),
        http(app) as transport,
        openai.AsyncOpenAI(base_url="http://test/v1", api_key=key, max_retries=0, http_client=transport) as client,
    ):
        client.app, client.transport = app, transport
        yield client


def request(custom_id, url="/v1/completions", **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "hi", "max_tokens": 3, **body}}


def jsonl(lines):
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


async def upload(client, lines, purpose="batch"):
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    return await client.files.create(file=("requests.jsonl", content), purpose=purpose)


async def begin(client, lines, endpoint="/v1/completions", **more):
    file = await upload(client, lines)
    window = more.pop("completion_window", "24h")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window, **more)


async def ended(client, batch, wanted=("completed", "failed", "expired", "cancelled")):
    """The batch, when its status is one of `wanted`."""
    async with asyncio.timeout(30):
        while (found := await client.batches.retrieve(batch.id)).status not in wanted:
            await asyncio.sleep(0.005)
    return found


async def answers(client, file_id):
    """The lines of a file by custom_id; each is there once."""
    if file_id is None:
        return {}
    content = await client.files.content(file_id)
    lines = [json.loads(line) for line in content.text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found
