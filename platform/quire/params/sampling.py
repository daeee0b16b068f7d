"""Parameters of sampling and beam search, validated on construction.

Names and rules are those of vLLM's `SamplingParams`, so that its users can keep their code. A wrong
value raises `BadRequest` (a ValueError) that names the field. The engine checks what depends on the model: ids
within the vocabulary, the context length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import BadRequest
from quire.params.structured import StructuredOutputsParams, StructuredSpec

INT64 = 2**63 - 1
MAX_N = 128
MAX_STOP_STRINGS = 4
MAX_STOP_LENGTH = 1024
MAX_BAD_WORDS = 128
MAX_BIASES = 1024
MAX_STOP_TOKEN_IDS = 4096
MAX_ALLOWED_TOKEN_IDS = 1 << 18
MAX_BEAM_WIDTH = 64
MAX_ID_DIGITS = 18
MAX_PREDICTION_IDS = 1 << 20


_BEAMS = (
    "A beam search is asked for with BeamSearchParams(beam_width=…, max_tokens=…, length_penalty=…), not with"
    " `use_beam_search`, `length_penalty` and `early_stopping` of SamplingParams."
)


def _fail(param: str, rule: str, value: object) -> None:
    raise BadRequest(f"`{param}` must be {rule}, got {value!r:.80}.", param)


def _number(param: str, value: object, low: float, high: float, rule: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _fail(param, rule, value)
    elif not low <= value <= high or not math.isfinite(value):  # in this order: an integer may be larger than any float
        _fail(param, rule, value)


def _integer(param: str, value: object, low: int, high: int | None, rule: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        _fail(param, rule, value)
    elif value < low or (high is not None and value > high):
        _fail(param, rule, value)


def _boolean(param: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        _fail(param, "true or false", value)


def _strings(param: str, value: str | Sequence[str] | None, most: int) -> tuple[str, ...]:
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else tuple(value)
    if any(not isinstance(item, str) or not item for item in items):
        _fail(param, "a string or a list of non-empty strings", value)
    if len(items) > most:
        raise BadRequest(f"`{param}` takes at most {most} strings, got {len(items)}.", param)
    if any(len(item) > MAX_STOP_LENGTH for item in items):
        raise BadRequest(f"`{param}`: a string may have at most {MAX_STOP_LENGTH} characters.", param)
    return items


def _ids(param: str, value: Sequence[int] | None, most: int) -> tuple[int, ...]:
    ids = tuple(value or ())
    if len(ids) > most:
        raise BadRequest(f"`{param}` takes at most {most} token ids, got {len(ids)}.", param)
    kinds = set(map(type, ids))
    if (
        any(kind is bool or not issubclass(kind, int) for kind in kinds) or min(ids, default=0) < 0
    ):  # there may be many: no loop in Python
        _fail(param, "a list of token ids (integers of at least 0)", value)
    return ids


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample tokens, and when to stop.

    temperature: 0 … 2; 0 is greedy. top_k: 0 or −1 is off. seed: the same seed samples the same tokens.
    max_tokens: None = until the context is full. best_of: how many texts to sample, of which the `n` most likely are
    returned. logprobs, prompt_logprobs: how many alternatives to report, −1 = the whole vocabulary.
    stop: strings that end the text; excluded from it unless include_stop_str_in_output.
    stream_interval: tokens per update of a stream; the first and the last token are sent at once. None = 1.
    speculative: whether the tokens of the request may be drafted (speculative decoding); None = if the model has a
    drafter. prediction: the text that is expected; where it is right, tokens come faster. prediction_ids: its tokens.
    speculative_lora: the adapter of the drafter to draft with, by its name. None of them changes the output.
    extra: fields that logits-processor plugins declare. logits_processors: in-process only, functions
    (generated ids, logits [vocab]) -> logits, or with the prompt's ids as the first argument.
    structured: a constraint on the output. vLLM's forms structured_outputs, and its older name guided_decoding, are
    converted to it. use_beam_search, length_penalty, early_stopping: older names that accept only these defaults;
    `BeamSearchParams` has them.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    stream_interval: int | None = None
    speculative: bool | None = None
    speculative_lora: str | None = None
    prediction: str | None = None
    prediction_ids: Sequence[int] = ()
    structured: StructuredSpec | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    logits_processors: Sequence[Any] | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        if self.use_beam_search or self.length_penalty != 1.0 or self.early_stopping:
            raise BadRequest(_BEAMS, "use_beam_search")
        _functions(self.logits_processors)
        self._check_counts()
        self._check_distribution()
        self._normalize()

    @property
    def num_seqs(self) -> int:
        """Sequences that the engine runs for the request."""
        return self.best_of or self.n

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def edits_logits(self) -> bool:
        """Whether it bans, biases or penalizes tokens."""
        return (
            self.allowed_token_ids is not None
            or bool(self.logit_bias)
            or bool(self.bad_word_ids)
            or self.min_tokens > 0
            or (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)
        )

    def _check_counts(self) -> None:
        _integer("n", self.n, 1, MAX_N, f"an integer from 1 to {MAX_N}")
        if self.best_of is not None:
            _integer("best_of", self.best_of, self.n, MAX_N, f"an integer from n ({self.n}) to {MAX_N}")
        if self.greedy and self.num_seqs > 1:
            raise BadRequest(f"`n` must be 1 when temperature is 0: all {self.num_seqs} would be equal.", "n")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0, None, "an integer of at least 0")
        _integer("min_tokens", self.min_tokens, 0, None, "an integer of at least 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _fail("min_tokens", f"at most max_tokens ({self.max_tokens})", self.min_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value, -1, None, "an integer of at least 0, or -1 for all")
        if self.stream_interval is not None:
            _integer("stream_interval", self.stream_interval, 1, INT64, "an integer of at least 1")
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), INT64, "a 64-bit integer")

    def _check_distribution(self) -> None:
        _number("temperature", self.temperature, 0, 2, "a number from 0 to 2")
        _number("presence_penalty", self.presence_penalty, -2, 2, "a number from -2 to 2")
        _number("frequency_penalty", self.frequency_penalty, -2, 2, "a number from -2 to 2")
        _number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6, "a number above 0")
        _number("top_p", self.top_p, 1e-12, 1, "a number above 0, at most 1")
        _number("min_p", self.min_p, 0, 1, "a number from 0 to 1")
        _integer("top_k", self.top_k, -1, INT64, "an integer of at least 1, or 0 or -1 for off")

    def _normalize(self) -> None:
        put = object.__setattr__  # the record is frozen, and this is its construction
        put(self, "top_k", max(self.top_k, 0))
        put(self, "stop", _strings("stop", self.stop, MAX_STOP_STRINGS))
        put(self, "bad_words", _strings("bad_words", self.bad_words, MAX_BAD_WORDS))
        put(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS))
        if self.stop and not self.detokenize:
            raise BadRequest("`stop` needs `detokenize`: stop strings are found in the text.", "stop")
        if self.allowed_token_ids is not None:
            allowed = _ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
            put(self, "allowed_token_ids", allowed)
            if not self.allowed_token_ids:
                _fail("allowed_token_ids", "a non-empty list", self.allowed_token_ids)
        if self.logit_bias:
            put(self, "logit_bias", _biases(self.logit_bias))
        _boolean("speculative", self.speculative)
        if not isinstance(self.speculative_lora, str | None) or self.speculative_lora == "":
            _fail("speculative_lora", "the name of an adapter of the drafter", self.speculative_lora)
        if self.prediction is not None and (not isinstance(self.prediction, str) or self.prediction_ids):
            _fail("prediction", "a string, and the only one of `prediction` and `prediction_ids`", self.prediction)
        put(self, "prediction_ids", _ids("prediction_ids", self.prediction_ids, MAX_PREDICTION_IDS))
        put(self, "structured", _structured(self.structured, self.structured_outputs, self.guided_decoding))
        put(self, "structured_outputs", None)
        put(self, "guided_decoding", None)


def check_logprobs(param: str, count: int | None, most: int) -> None:
    """Raise `BadRequest` if the field asks for more than `most`, a model's `max_logprobs`; -1 = any number."""
    if count is None or most < 0 or 0 <= count <= most:
        return
    if count < 0:
        raise BadRequest(
            f"`{param}` cannot be {count}: log-probabilities of the whole vocabulary take --max-logprobs -1; here it is"
            f" {most}.",
            param,
        )
    raise BadRequest(f"`{param}` must be from 0 to {most} (--max-logprobs), got {count}.", param)


def _functions(value: Sequence[Any] | None) -> None:
    if value is not None and (isinstance(value, str) or not all(callable(function) for function in value)):
        _fail("logits_processors", "a list of functions", value)


def _structured(made: StructuredSpec | None, *asked: StructuredOutputsParams | None) -> StructuredSpec | None:
    """The one constraint among all forms, converted for the engine."""
    found = [each.structured() for each in asked if each is not None] + ([] if made is None else [made])
    if len(found) > 1:
        raise BadRequest("`structured_outputs` and `guided_decoding` exclude each other.", "structured_outputs")
    return found[0] if found else None


def _biases(value: Mapping[Any, Any]) -> dict[int, float]:
    if len(value) > MAX_BIASES:
        raise BadRequest(f"`logit_bias` takes at most {MAX_BIASES} entries, got {len(value)}.", "logit_bias")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not str(key).isdecimal() or len(str(key)) > MAX_ID_DIGITS:
            _fail("logit_bias", "a map from token id to number", key)
        _number("logit_bias", bias, -math.inf, math.inf, "a map from token id to finite number")
        biases[int(key)] = min(100.0, max(-100.0, float(bias)))
    return biases


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Beam search keeps the `beam_width` most likely texts; score = summed logprob / length ** length_penalty.

    structured, structured_outputs: a constraint, as in `SamplingParams`. speculative: beams are never drafted.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured: StructuredSpec | None = None
    structured_outputs: StructuredOutputsParams | None = None
    speculative: bool | None = None

    def __post_init__(self) -> None:
        _boolean("speculative", self.speculative)
        if self.speculative:
            raise BadRequest("`speculative` has no effect with a beam search: beams are not drafted.", "speculative")
        object.__setattr__(self, "structured", _structured(self.structured, self.structured_outputs))
        object.__setattr__(self, "structured_outputs", None)
        if self.structured is not None and self.ignore_eos:
            raise BadRequest("`ignore_eos` has no meaning in a beam search with a constraint.", "ignore_eos")
        _integer("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH, f"an integer from 1 to {MAX_BEAM_WIDTH}")
        _integer("max_tokens", self.max_tokens, 1, None, "an integer of at least 1")
        _number("temperature", self.temperature, 0, 2, "a number from 0 to 2")
        _number("length_penalty", self.length_penalty, -10, 10, "a number from -10 to 10")

    @property
    def num_seqs(self) -> int:
        return self.beam_width
