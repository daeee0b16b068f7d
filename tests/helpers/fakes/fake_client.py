"""A client of engines without an engine: answers are a fixed text, byte by byte, under a test's control."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import httpx
import numpy as np
from fake_loads import PretendLoads, info

from quire.params.pooling import PoolingParams, PoolingResult
from quire.params.sampling import BeamSearchParams
from quire.records import Registry
from quire.server.app import build_app
from quire.server.service.models import ServedModel
from quire.settings.server_config import ServerConfig
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import EngineStats, SeqDelta, TokenLogprobs
from quire_testing import byte_tokenizer
from quire_testing.tiny import CHAT_TEMPLATE, END_ID

REPLY = "Hello, world! "


def embedder(name="embedder", **changes):
    """A model that embeds, the whole prompt and each of its tokens."""
    return info(name, **{"tasks": ("embed", "token_embed"), "embedding_size": 8, "dimensions": (), **changes})


def classifier(*labels, name="classifier", **changes):
    return info(name, **{"tasks": ("classify", "token_classify"), "labels": labels, **changes})


class PretendAdapters:
    """Adapters that are loaded at once. refusal: raised by the next load. calls: what came."""

    def __init__(self):
        self.infos = {}
        self.calls = []
        self.refusal = None

    def all(self):
        return list(self.infos.values())

    def get(self, name):
        return self.infos.get(name)

    async def settled(self, name):
        return self.get(name)

    async def fetch(self):
        return self.all()

    async def load(self, adapter, *, replacing=False, wait=True):
        self.calls.append((adapter, replacing, wait))
        if self.refusal is not None:
            raise self.refusal
        if not wait:
            self.infos[adapter.name] = adapter
            return adapter
        revision = self.infos[adapter.name].revision + 1 if adapter.name in self.infos else 1
        info = replace(adapter, state="ready", revision=revision, tier="host", kind="LORA", rank=8, num_bytes=1000)
        self.infos[adapter.name] = info
        return info

    async def unload(self, name):
        self.calls.append(name)
        del self.infos[name]


class PretendClient(PretendLoads):
    """Seq i of a request says REPLY from its i-th byte on, for ever or `ends_after` tokens.

    hold: while set to an unset event, generation stops after `held_at` tokens until it is set.
    failure: (tokens, error) raised after so many tokens. requests: all that came. aborted: ids of those
    that were given up, by `abort` or by closing the stream.
    """

    def __init__(self, *infos, reply=REPLY, ends_after=None, per_step=1):
        self.infos = infos or (info(),)
        self.reply = reply.encode()
        self.ends_after = ends_after
        self.per_step = per_step
        self.unavailable = None
        self.hold = None
        self.held_at = 2
        self.failure = None
        self.requests = []
        self.aborted = []
        self.running = {}
        self.progress = asyncio.Event()
        self.host_plugin_rows = []
        self.closed = False
        self.adapters = PretendAdapters()
        super().__init__()

    def models(self):
        return self.infos

    async def generate(self, model, request):
        self.requests.append(request)
        if self.failure is not None and self.failure[0] == 0:
            raise self.failure[1]
        self.running[request.id] = set(range(request.params.num_seqs))
        try:
            async for deltas in self._steps(model, request):
                yield deltas
        finally:
            if self.running.pop(request.id, None):
                self.aborted.append(request.id)

    async def run(self, model, requests, take):
        """All at once; the first error ends all."""

        async def one(request):
            async with aclosing(self.generate(model, request)) as stream:
                async for deltas in stream:
                    for delta in deltas:
                        take(delta)

        tasks = [asyncio.create_task(one(request)) for request in requests]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _steps(self, model, request):
        if isinstance(request.params, BeamSearchParams):
            yield [self._beam(request, i) for i in range(request.params.beam_width)]
            self.running[request.id].clear()
            return
        if isinstance(request.params, PoolingParams):
            yield [await self._pooled(model, request)]
            self.running[request.id].clear()
            return
        step = 0
        while self.running[request.id]:
            begin = step * self.per_step
            if self.hold is not None and begin >= self.held_at:
                self.progress.set()
                await self.hold.wait()
            if self.failure is not None and begin >= self.failure[0]:
                raise self.failure[1]
            yield [self._delta(request, i, begin) for i in sorted(self.running[request.id])]
            step += 1
            await asyncio.sleep(0)

    def _token(self, index, position):
        if self.ends_after is not None and position >= self.ends_after:
            return END_ID
        return self.reply[(position + index) % len(self.reply)]

    def _delta(self, request, index, begin):
        params = request.params
        count = min(self.per_step, (params.max_tokens or 10**9) - begin)
        ids, finish, stop_reason = [], None, None
        for position in range(begin, begin + count):
            ids.append(self._token(index, position))
            if ids[-1] in params.stop_token_ids or (ids[-1] == END_ID and not params.ignore_eos):
                finish = "stop"
                stop_reason = ids[-1] if ids[-1] in params.stop_token_ids else None
                break
        if finish is None and begin + count >= (params.max_tokens or 10**9):
            finish = "length"
        if finish:
            self.running[request.id].discard(index)
        first = begin == 0 and index == 0
        return SeqDelta(
            request_id=request.id,
            index=index,
            token_ids=tuple(ids),
            logprobs=None if params.logprobs is None else tuple(scored(i, params.logprobs) for i in ids),
            finish_reason=finish,
            stop_reason=stop_reason,
            num_cached_tokens=3 if first else None,
            prompt_logprobs=self._prompt_logprobs(request) if first else None,
            queue_s=0.25 if first else None,
        )

    def _beam(self, request, index):
        ids = tuple(self._token(index, position) for position in range(request.params.max_tokens))
        return SeqDelta(
            request_id=request.id,
            index=index,
            token_ids=ids,
            finish_reason="length",
            num_cached_tokens=0 if index == 0 else None,
            cumulative_logprob=-1.0 - index,
        )

    async def _pooled(self, model, request):
        if self.hold is not None:
            self.progress.set()
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure[1]
        return SeqDelta(
            request_id=request.id,
            finish_reason="stop",
            num_cached_tokens=1,
            queue_s=0.25,
            pooled=PoolingResult.from_array(numbers_of(next(i for i in self.infos if i.name == model), request)),
        )

    def _prompt_logprobs(self, request):
        if request.params.prompt_logprobs is None:
            return None
        ids = request.prompt.token_ids
        return (None, *(scored(i, request.params.prompt_logprobs) for i in ids[1:]))

    def abort(self, request_id, index=None):
        left = self.running.get(request_id)
        if left:
            self.aborted.append(request_id if index is None else (request_id, index))
            left -= {index} if index is not None else set(left)

    async def stats(self):
        return [EngineStats(model=i.name, num_pages=i.num_pages, num_running=len(self.running)) for i in self.infos]

    async def stats_and_plugin_calls(self):
        return await self.stats(), self.host_plugin_rows

    async def close(self, drain_s=0.0):
        self.closed = True


def numbers_of(model, request):
    """What the pretended model makes of a prompt: of each token a row [size] that depends on its id and type."""
    params, ids = request.params, np.array(request.prompt.token_ids)
    types = np.array(request.prompt.token_types or np.zeros_like(ids))
    size = len(model.labels) if params.task.endswith("classify") else model.embedding_size
    rows = np.sin(np.outer(ids + 1000 * types + 1, np.arange(1, size + 1))).astype(np.float32)  # [tokens, size]
    if params.task.startswith("token"):
        return rows
    whole = rows.mean(0)[: params.dimensions]
    if params.use_activation is False:
        return whole
    return whole / np.linalg.norm(whole) if params.task == "embed" else 1 / (1 + np.exp(-whole))


def scored(token_id, count):
    """The token itself at log(1/2), then its successors, ever less likely."""
    top = tuple(((token_id + i) % 256, -0.5 - i) for i in range(count))
    return TokenLogprobs(token_id=token_id, logprob=-0.5, rank=1, top=top)


_renderer = TemplatePool(timeout_s=60)


def served(folder, infos, template=CHAT_TEMPLATE, renderer=_renderer, **more):
    tokenizer = Tokenizer.load(byte_tokenizer(folder, template))
    chat = None
    if template is not None:
        chat = ChatTemplate(tokenizer.chat_templates, tokenizer.special_tokens, renderer)
    return [ServedModel(info=one, tokenizer=tokenizer, template=chat, **more) for one in infos]


def pretend_app(folder, client=None, config=None, registry=None, registered=(), **more):
    client = client or PretendClient()
    models = served(folder, client.infos, **more)
    return build_app(client, config or ServerConfig(), registry or Registry(), models, registered=registered)


def http(app, **settings):
    """An HTTP client that talks to the application in this process."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", **settings)
