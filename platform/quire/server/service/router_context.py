"""What the routes of a plugin may use of the server: its options, the served models, and generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from quire.params.sampling import SamplingParams
from quire.records import RouterContext
from quire.server.http.middleware import random_id
from quire.server.service.models import supports
from quire.server.service.prompts import check_context_length, check_token_ids
from quire.server.service.service import Service
from quire.text.inputs.inputs import InputLimits, to_prompt, with_bad_words
from quire.text.outputs.outputs import RequestOutput
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types import Prompt, Request


def router_context(service: Service, plugin: str) -> RouterContext:
    """The context of the routers of one plugin."""
    return RouterContext(
        options=service.registry.options.get(plugin, {}),
        models=lambda: [served.info for served in service.models.all],
        generate=partial(_generate, service, f"plugin {plugin}"),
    )


async def _generate(
    service: Service,
    client: str,
    prompt: str | Sequence[int],
    params: SamplingParams | None = None,
    model: str | None = None,
) -> RequestOutput:
    served = await service.adapters.find(model or service.models.default_for(supports("generate")))
    limits = InputLimits(
        max_model_len=served.info.max_model_len,
        vocab_size=served.info.vocab_size,
        max_chars=service.config.max_text_chars,
    )
    given = params or SamplingParams()
    check_token_ids(given, served.info.vocab_size)

    def tokenize(should_continue: ShouldContinue) -> tuple[Prompt, SamplingParams]:
        within = replace(limits, should_continue=should_continue)
        return to_prompt(prompt, served.tokenizer, within), with_bad_words(given, served.tokenizer)

    with service.inflight.pending():
        tokenized, checked = await service.pools.texts.run(tokenize)
    check_context_length(len(tokenized.token_ids), checked.max_tokens, served.info.max_model_len)
    request = Request(
        id=f"plugin-{random_id()}", prompt=tokenized, params=checked, adapters=served.adapters, client=client
    )
    (result,) = await service.generation_job(served, [request]).results()
    return result
