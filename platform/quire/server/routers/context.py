"""What the routes of a plugin may use of the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fastapi import FastAPI, Request as HttpRequest
from pydantic import BaseModel
from starlette.responses import Response

from quire.errors import QuireError
from quire.params.sampling import SamplingParams
from quire.records import ModelFormats, RouterContext
from quire.server.http.auth import may_see_all_clients
from quire.server.http.body import validate
from quire.server.http.errors import as_quire_error
from quire.server.http.forms import read_upload
from quire.server.http.request_ids import random_id
from quire.server.http.sse import EventStream
from quire.server.openai.chat_reasoning import BUDGET_FIELD
from quire.server.residency.leases import Leases
from quire.server.routers.answers import start_chat, start_completion, start_transcription
from quire.server.routers.route_calls import call_route, post_json
from quire.server.service.models import ServedModel, supports
from quire.server.service.prompts import check_context_length, check_token_ids
from quire.server.service.request_fields import check_list_lengths
from quire.server.service.service import Service, client_identity
from quire.text.inputs.inputs import InputLimits, to_prompt, with_bad_words, with_prediction
from quire.text.outputs.outputs import RequestOutput
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types import ClientUsage, Prompt, Request

B = TypeVar("B", bound=BaseModel)


def router_context(app: FastAPI, service: Service, plugin: str) -> RouterContext:
    """The context of the routers of one plugin."""
    return RouterContext(
        options=service.registry.options.get(plugin, {}),
        models=lambda: [served.info for served in service.models.all],
        adapters=service.adapters.ready,
        generate=partial(_generate, service, f"plugin {plugin}"),
        chat=partial(start_chat, service),
        complete=partial(start_completion, service),
        transcribe=partial(start_transcription, service),
        read=partial(_read, service),
        stream=_stream,
        call=partial(call_route, app),
        post=partial(post_json, app),
        upload=read_upload,
        client_of=client_identity,
        formats=partial(_formats, service),
        clients=partial(_clients, service),
        model_control=service.control,
    )


def _clients(service: Service, request: HttpRequest) -> Sequence[ClientUsage]:
    own, config = client_identity(request), service.config
    sees_all = may_see_all_clients(request.scope, config.api_key, config.admin_api_key)
    return [usage for usage in service.metrics.clients.all() if sees_all or usage.client == own]


async def _formats(service: Service, model: str | None = None) -> ModelFormats:
    with Leases() as leases:
        served = await service.find_model(model or _default(service), leases)
    has_limit = BUDGET_FIELD in service.request_fields.extra_types
    return ModelFormats(
        template=served.template.default_template if served.template else None,
        tool_parser=served.tool_parser.name if served.tool_parser else None,
        reasoning_parser=served.reasoning_parser.name if served.reasoning_parser else None,
        limits_reasoning=served.reasoning_parser is not None and has_limit,
    )


async def _read(service: Service, request: HttpRequest, schema: type[B]) -> B:
    read = await service.bodies.read(request)
    check_list_lengths(read.value)
    fields: B = await service.bodies.validate(read, partial(validate, schema, read.value))
    return fields


async def _stream(
    request: HttpRequest,
    pieces: AsyncGenerator[bytes, None],
    failure: Callable[[QuireError], bytes],
    media_type: str = "text/event-stream",
) -> Response:
    async def run(put: Callable[[bytes], None]) -> None:
        async with aclosing(pieces):
            async for piece in pieces:
                put(piece)

    stream = EventStream(run, lambda error: failure(as_quire_error(error)), media_type)
    await stream.wait_first(request.receive)
    return stream


async def _generate(
    service: Service,
    client: str,
    prompt: str | Sequence[int],
    params: SamplingParams | None = None,
    model: str | None = None,
) -> RequestOutput:
    with Leases() as leases:
        served = await service.find_model(model or _default(service), leases)
        return await _generate_on(service, served, client, prompt, params or SamplingParams())


def _default(service: Service) -> str:
    return service.residency.registrations.default_for(supports("generate"))


async def _generate_on(
    service: Service, served: ServedModel, client: str, prompt: str | Sequence[int], given: SamplingParams
) -> RequestOutput:
    limits = InputLimits(
        max_model_len=served.info.max_model_len,
        vocab_size=served.info.vocab_size,
        max_chars=service.config.max_text_chars,
    )
    check_token_ids(given, served.info.vocab_size)

    def tokenize(should_continue: ShouldContinue) -> tuple[Prompt, SamplingParams]:
        within = replace(limits, should_continue=should_continue)
        checked = with_prediction(with_bad_words(given, served.tokenizer), served.tokenizer, within)
        return to_prompt(prompt, served.tokenizer, within), checked

    with service.inflight.pending(), service.models.uses.using(served.info.name):
        tokenized, checked = await service.pools.texts.run(tokenize)
    check_context_length(len(tokenized.token_ids), checked.max_tokens, served.info.max_model_len)
    request = Request(
        id=f"plugin-{random_id()}",
        prompt=tokenized,
        params=checked,
        adapters=served.adapters,
        client=client,
        endpoint=client,
    )
    (result,) = await service.generation_job(served, [request]).results()
    return result
