"""Turns request fields into `SamplingParams` and checks rules between fields.

A value comes from the request, else from the model's defaults, else from `SamplingParams`, which checks ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sized
from typing import Any

from quire.errors import BadRequest
from quire.hooks.plugins_off import how_to_enable
from quire.params.sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    BeamSearchParams,
    SamplingParams,
)
from quire.params.structured import StructuredSpec
from quire.records import Registry
from quire.server.schemas.sampling import SamplingFields
from quire.server.schemas.unsupported import REPLACEMENTS, UNSUPPORTED_FIELDS, Values
from quire.server.service.structured_fields import CONSTRAINT_FIELDS, structured_spec
from quire.settings.server_config import ServerConfig

log = logging.getLogger("quire.server")

DEFAULTED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Fields for which a model may have defaults."""

COPIED_FIELDS = (
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
    "speculative",
    "speculative_lora",
)

NON_STREAM_INTERVAL = 16
"""Tokens per delta of a response that is not streamed: each delta costs time in this process."""

UNSUPPORTED_WITH_BEAMS = (
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
    "speculative",
    "speculative_lora",
    "prediction",
)


CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
"""Kinds of `quire.params.structured.StructuredSpec` that requests may ask for."""

MAX_MESSAGE_PARTS = 16384
"""Messages of a conversation, parts of their content and tool calls, all together."""

_MAX_LENGTHS = {
    "logit_bias": (MAX_BIASES, "entries"),
    "bad_words": (MAX_BAD_WORDS, "strings"),
    "stop": (MAX_STOP_STRINGS, "strings"),
    "stop_token_ids": (MAX_STOP_TOKEN_IDS, "token ids"),
    "allowed_token_ids": (MAX_ALLOWED_TOKEN_IDS, "token ids"),
}


class RequestFields:
    """The request fields that depend on the loaded plugins: extra fields, and kinds of constraints."""

    def __init__(self, registry: Registry) -> None:
        self.extra_types: dict[str, type] = {}
        for processor in registry.all("quire_logits_processors"):
            self.extra_types.update(processor.fields)
        backends = registry.all("quire_grammar_backends")
        self.grammar_kinds = frozenset[str]().union(*(backend.kinds for backend in backends))
        self._advice = _advice(registry, [kind for kind in CONSTRAINTS if kind not in self.grammar_kinds])

    def extra(self, fields: SamplingFields) -> dict[str, Any]:
        """The values of fields that plugins declare, type-checked; unknown fields are logged."""
        given = {**(fields.model_extra or {}), **(fields.vllm_xargs or {})}
        known: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self.extra_types:
                if name not in UNSUPPORTED_FIELDS:
                    log.debug("request field %.80r is not known and ignored", name)
            elif value is not None:
                known[name] = _typed(name, value, self.extra_types[name])
        return known

    def structured(self, fields: SamplingFields) -> StructuredSpec | None:
        """The constraint of a request, None without one. Raises `BadRequest`."""
        if fields.response_format is None and fields.model_fields_set.isdisjoint(CONSTRAINT_FIELDS):
            return None
        return structured_spec(fields, self.grammar_kinds, lambda kind: self._advice.get(kind, ""))


def _advice(registry: Registry, missing: list[str]) -> dict[str, str]:
    """For each kind of constraint that no loaded plugin offers, how to enable one that does; computed at start."""
    if not registry.plugins:
        return {}

    def advice(kind: str) -> str:
        return how_to_enable(registry, "quire_grammar_backends", lambda backend: kind in backend.kinds)

    return {kind: advice(kind) for kind in missing}


def reject_unsupported(
    body: Mapping[str, Any],
    request_fields: RequestFields,
    unsupported: Mapping[str, Values] = UNSUPPORTED_FIELDS,
    supported: Collection[str] = (),
) -> None:
    """Raise `BadRequest` for a field of another server that would change the answer and that this server ignores.

    supported: fields that this route supports although they are in `unsupported`.
    """
    for name, value in body.items():
        if name not in unsupported or value is None or name in request_fields.extra_types or name in supported:
            continue
        harmless = unsupported[name]
        if not any(type(value) is type(allowed) and value == allowed for allowed in harmless):
            instead = f"; use `{REPLACEMENTS[name]}`" if name in REPLACEMENTS else ""
            raise BadRequest(f"`{name}` would change the answer and is not supported by this server{instead}.", name)


def check_list_lengths(body: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for a list or object with too many items, before any of its items is validated."""
    for name, (max_length, items) in _MAX_LENGTHS.items():
        value = body.get(name)
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) > max_length:
            raise BadRequest(f"`{name}` takes at most {max_length} {items}, got {len(value)}.", name)
    messages = body.get("messages")
    if isinstance(messages, list):
        _check_message_parts(messages)
    prediction = body.get("prediction")
    parts = prediction.get("content") if isinstance(prediction, Mapping) else None
    if isinstance(parts, list) and len(parts) > MAX_MESSAGE_PARTS:
        raise BadRequest(f"`prediction` may have at most {MAX_MESSAGE_PARTS} parts.", "prediction")
    nested = body.get("sampling_params")
    if isinstance(nested, Mapping):
        check_list_lengths({name: nested.get(name) for name in _MAX_LENGTHS})


def _check_message_parts(messages: list[Any]) -> None:
    count = len(messages)
    for message in messages if count <= MAX_MESSAGE_PARTS else ():
        if isinstance(message, Mapping):
            parts = (message.get("content"), message.get("tool_calls"))
            count += sum(len(part) for part in parts if isinstance(part, list))
    if count > MAX_MESSAGE_PARTS:
        raise BadRequest(
            f"`messages` may have at most {MAX_MESSAGE_PARTS} messages, parts of content and tool calls, together.",
            "messages",
        )


def sampling_params(
    fields: SamplingFields,
    request_fields: RequestFields,
    defaults: Mapping[str, Any],
    config: ServerConfig,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The checked parameters of a prompt. defaults: of the model."""
    values: dict[str, Any] = {name: getattr(fields, name) for name in COPIED_FIELDS}
    for name in DEFAULTED_FIELDS:
        value = getattr(fields, name)
        value = defaults.get(name) if value is None else value
        if value is not None:
            values[name] = value
    values["n"] = 1 if fields.n is None else fields.n
    return SamplingParams(
        **values,
        max_tokens=max_tokens,
        stream_interval=_stream_interval(fields, config),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured=request_fields.structured(fields),
        extra=request_fields.extra(fields),
    )


def _stream_interval(fields: SamplingFields, config: ServerConfig) -> int:
    """How many tokens the engine reports in one delta."""
    if fields.stream_interval is not None:
        return fields.stream_interval
    if fields.stream:
        return config.stream_interval
    return 1 if fields.stop else NON_STREAM_INTERVAL  # stop strings are found in the text of a delta


def beam_params(fields: SamplingFields, request_fields: RequestFields, max_tokens: int) -> BeamSearchParams:
    """The parameters of a beam search; raises `BadRequest` for fields that would have no effect on it."""
    if fields.stream:
        raise BadRequest("`use_beam_search` and `stream` exclude each other.", "stream")
    for name in UNSUPPORTED_WITH_BEAMS:
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
        structured=request_fields.structured(fields),
    )


def check_stream_fields(fields: SamplingFields) -> None:
    """Raise `BadRequest` for fields that exclude `stream` or need it."""
    if fields.stream_options is not None and not fields.stream:
        raise BadRequest("`stream_options` is only allowed when `stream` is true.", "stream_options")
    if fields.stream and fields.prompt_logprobs is not None:
        raise BadRequest("`prompt_logprobs` is not available with `stream`.", "prompt_logprobs")
    if fields.stream and fields.best_of is not None and fields.best_of > (fields.n or 1):
        raise BadRequest("`best_of` above `n` is not available with `stream`.", "best_of")
    check_cache_salt(fields.cache_salt)


def check_cache_salt(salt: str | None) -> None:
    """Raise `BadRequest` for a salt with a reserved character."""
    if salt is not None and any(char in salt for char in "@/\\\0"):
        raise BadRequest("`cache_salt` may not contain @, /, \\ or NUL.", "cache_salt")


def _typed(name: str, value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRequest(f"`{name}` must be of type {kind.__name__}, got {value!r:.80}.", name)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadRequest(f"`{name}` must be a 64-bit integer.", name)
    return value
