"""From request fields to `SamplingParams`: request, then the model's defaults, then built-in ones.

It knows field names of the wire and rules between fields; ranges are checked by `SamplingParams`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from quire.errors import BadRequest
from quire.plugins_off import how_to_enable
from quire.records import Registry
from quire.sampling import BeamSearchParams, SamplingParams
from quire.server.constraints import constraint
from quire.server.schema_refused import IN_PLACE_OF, NOT_HONOURED, Values
from quire.server.schema_sampling import SamplingFields
from quire.server_config import ServerConfig
from quire.structured import Structured

log = logging.getLogger("quire.server")

DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Fields for which a model may bring defaults."""

COPIED = (
    "best_of",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
)

WHOLE_INTERVAL = 16
"""Tokens told of together where the answer is sent as a whole: each time costs this process work beside the steps."""

NOT_WITH_BEAMS = (
    "stop",
    "stop_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "min_tokens",
    "seed",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stream_interval",
)


CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
"""Kinds of `quire.structured.Structured` that requests may ask for."""


class FieldRules:
    """What the loaded plugins make of request fields: extra fields, and kinds of constraints."""

    def __init__(self, registry: Registry) -> None:
        self.extra_types: dict[str, type] = {}
        for processor in registry.all("quire_logits_processors"):
            self.extra_types.update(processor.fields)
        backends = registry.all("quire_grammar_backends")
        self.grammar_kinds = frozenset[str]().union(*(backend.kinds for backend in backends))
        self._advice = _advice(registry, [kind for kind in CONSTRAINTS if kind not in self.grammar_kinds])

    def extra(self, fields: SamplingFields) -> dict[str, Any]:
        """Values of fields that plugins declared, type-checked; what nobody knows is logged."""
        given = {**(fields.model_extra or {}), **(fields.vllm_xargs or {})}
        known: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self.extra_types:
                if name not in NOT_HONOURED:
                    log.debug("request field %.80r is not known and ignored", name)
            elif value is not None:
                known[name] = _typed(name, value, self.extra_types[name])
        return known

    def structured(self, fields: SamplingFields) -> Structured | None:
        """The constraint that the request asks for."""
        return constraint(fields, self.grammar_kinds, lambda kind: self._advice.get(kind, ""))


def _advice(registry: Registry, missing: list[str]) -> dict[str, str]:
    """For each kind of constraint that no loaded plugin offers, which plugin would: found out before any request."""
    if not registry.plugins:
        return {}

    def advice(kind: str) -> str:
        return how_to_enable(registry, "quire_grammar_backends", lambda backend: kind in backend.kinds)

    return {kind: advice(kind) for kind in missing}


def refuse_unhonoured(
    body: Mapping[str, Any],
    rules: FieldRules,
    unhonoured: Mapping[str, Values] = NOT_HONOURED,
    honoured: Collection[str] = (),
) -> None:
    """Raise `BadRequest` for a field that clients rely on and this server would have to ignore.

    honoured: fields that mean something on this route after all.
    """
    for name, value in body.items():
        if name not in unhonoured or value is None or name in rules.extra_types or name in honoured:
            continue
        harmless = unhonoured[name]
        if not any(type(value) is type(allowed) and value == allowed for allowed in harmless):
            instead = f"; use `{IN_PLACE_OF[name]}`" if name in IN_PLACE_OF else ""
            raise BadRequest(f"`{name}` would change the answer and is not supported by this server{instead}.", name)


def sampling_params(
    fields: SamplingFields,
    rules: FieldRules,
    defaults: Mapping[str, Any],
    config: ServerConfig,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Checked parameters of one prompt; `defaults` are the model's."""
    values: dict[str, Any] = {name: getattr(fields, name) for name in COPIED}
    for name in DEFAULTED:
        value = getattr(fields, name)
        value = defaults.get(name) if value is None else value
        if value is not None:
            values[name] = value
    values["n"] = 1 if fields.n is None else fields.n
    return SamplingParams(
        **values,
        max_tokens=max_tokens,
        stream_interval=_interval(fields, config),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured=rules.structured(fields),
        extra=rules.extra(fields),
    )


def _interval(fields: SamplingFields, config: ServerConfig) -> int:
    """How many tokens the engine tells of together."""
    if fields.stream_interval is not None:
        return fields.stream_interval
    if fields.stream:
        return config.stream_interval
    return 1 if fields.stop else WHOLE_INTERVAL  # a stop string is found in the text: the sooner the better


def beam_params(fields: SamplingFields, rules: FieldRules, max_tokens: int) -> BeamSearchParams:
    """Parameters of a beam search; refuses fields that would have no effect on it."""
    if fields.stream:
        raise BadRequest("`use_beam_search` and `stream` exclude each other.", "stream")
    for name in NOT_WITH_BEAMS:
        if name in fields.model_fields_set and getattr(fields, name) not in (None, [], {}, 0, ""):
            raise BadRequest(f"`{name}` has no effect with `use_beam_search`; leave it out.", name)
    width, n = fields.best_of or fields.n or 1, 1 if fields.n is None else fields.n
    if n < 1 or n > width:
        raise BadRequest(f"`n` must be from 1 to the beam width ({width}), got {n}.", "n")
    return BeamSearchParams(
        beam_width=width,
        max_tokens=max_tokens,
        ignore_eos=fields.ignore_eos,
        temperature=fields.temperature or 0.0,
        length_penalty=fields.length_penalty,
        include_stop_str_in_output=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        structured=rules.structured(fields),
    )


def check_stream_fields(fields: SamplingFields) -> None:
    """Rules between `stream` and other fields."""
    if fields.stream_options is not None and not fields.stream:
        raise BadRequest("`stream_options` is only allowed when `stream` is true.", "stream_options")
    if fields.stream and fields.prompt_logprobs is not None:
        raise BadRequest("`prompt_logprobs` is not available with `stream`.", "prompt_logprobs")
    if fields.stream and fields.best_of is not None and fields.best_of > (fields.n or 1):
        raise BadRequest("`best_of` above `n` is not available with `stream`.", "best_of")
    check_cache_salt(fields.cache_salt)


def check_cache_salt(salt: str | None) -> None:
    """Refuse marks that a salt may not have."""
    if salt is not None and any(mark in salt for mark in "@/\\\0"):
        raise BadRequest("`cache_salt` may not contain @, /, \\ or NUL.", "cache_salt")


def _typed(name: str, value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRequest(f"`{name}` must be of type {kind.__name__}, got {value!r:.80}.", name)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadRequest(f"`{name}` must be a 64-bit integer.", name)
    return value
