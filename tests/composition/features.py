"""The table of features. A new feature adds a row, and every pair with it is tested.

Settings change how the engine works and must change no answer. Request features say what a request asks for;
`check` says what must hold of the answers whatever else was asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from engine_rig import Answer

from quire.params.structured import StructuredSpec
from quire.types import AdapterRef, WeightedAdapter

END = 256
TEXTS = ["yes, of course", "no, not at all", "perhaps"]

Answers = Sequence[Answer]
Check = Callable[[Answers], None]


MAX_DRAFTS = 9
"""Of a step: all that it accepts comes in one delta."""


@dataclass(frozen=True)
class Setting:
    """A way of running. `company`: how many other requests run beside the one looked at."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    company: int = 0
    warm: bool = False
    """Whether the same request was answered before."""
    from_tier: bool = False
    """Whether its pages are not on the device any more, if the model's pages can be kept elsewhere."""


@dataclass(frozen=True)
class Feature:
    """Something a request may ask for. `clashes`: features that the API refuses beside it."""

    name: str
    params: Mapping[str, Any]
    check: Check
    clashes: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)


SETTINGS = (
    Setting("alone"),
    Setting("company", company=8),
    Setting("tiny chunks", {"max_num_batched_tokens": 5, "max_num_seqs": 5}),
    Setting("whole prompts", {"enable_chunked_prefill": False, "max_num_batched_tokens": 64}),
    Setting("cache hit", warm=True),
    Setting("pages of 4", {"page_size": 4}, company=4, warm=True),
    Setting("no cache", {"enable_prefix_caching": False}, warm=True),
    Setting("recompute", {"num_pages": 16, "preemption": "recompute"}, company=8),
    Setting("swap", {"num_pages": 16, "preemption": "swap", "swap_space": 0.01}, company=8),
    Setting("priority", {"scheduling_policy": "priority"}, company=8),
    Setting("n-gram drafts", {"speculative_config": {"method": "ngram", "prompt_lookup_min": 1}}, company=4),
    Setting(
        "suffix drafts",
        {"speculative_config": {"method": "suffix", "num_speculative_tokens": MAX_DRAFTS}},
        4,
        warm=True,
    ),
    Setting("batch invariant", {"batch_invariant": True}, company=3),
    Setting("two ranks", {"tensor_parallel_size": 2}, company=4),
    Setting("two stages", {"pipeline_parallel_size": 2}, company=4),
    Setting("KV from host memory", {"kv_offloading_size": 0.01}, company=4, warm=True, from_tier=True),
)


def _count(answers: Answers, count: int) -> None:
    assert len(answers) == count


def _all(test: Callable[[Answer], bool]) -> Check:
    def check(answers: Answers) -> None:
        assert answers
        assert all(test(answer) for answer in answers)

    return check


def _ids(answer: Answer) -> list[int]:
    return answer.token_ids


def _logprobs_fit(answer: Answer) -> bool:
    pairs = zip(answer.logprobs, answer.token_ids, strict=True)
    return all(p.token_id == i and len(p.top) >= 2 and p.logprob <= 0 and p.rank >= 1 for p, i in pairs)


def _prompt_is_scored(answers: Answers) -> None:
    scored = [delta.prompt_logprobs for answer in answers for delta in answer.deltas if delta.prompt_logprobs]
    assert len(scored) == 1
    first, *rest = scored[0]
    assert first is None
    assert all(entry is not None and math.isfinite(entry.logprob) for entry in rest)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "of": {"enum": ["a", "é"]}},
    "required": ["n", "of"],
    "additionalProperties": False,
}


def _is_json(answer: Answer) -> bool:
    if answer.last.finish_reason == "length":
        return True
    value = json.loads(bytes(i for i in answer.token_ids if i < END))
    return set(value) == {"n", "of"} and 0 <= value["n"] <= 99 and value["of"] in ("a", "é")


def _spells_a_choice(answer: Answer) -> bool:
    text = bytes(i for i in answer.token_ids if i < END).decode("utf-8", "replace")
    return any(choice.startswith(text) for choice in TEXTS)


def _reasons_briefly(answer: Answer) -> bool:
    """Whether the end of the reasoning came after three tokens, if the answer did not end before."""
    ids = answer.token_ids[:5]
    return (35, 62) in pairwise(ids) or len(answer.token_ids) < 5


FEATURES = (
    Feature("greedy", {"temperature": 0}, lambda answers: None, clashes=("n", "best of", "seed")),
    Feature("seed", {"temperature": 1.0, "seed": 5, "top_k": 40, "top_p": 0.95, "min_p": 0.001}, lambda answers: None),
    Feature("n", {"n": 3, "temperature": 0.9, "seed": 6}, lambda answers: _count(answers, 3), clashes=("best of",)),
    Feature("best of", {"best_of": 4, "temperature": 0.8, "seed": 7}, lambda answers: _count(answers, 4)),
    Feature("logprobs", {"logprobs": 2}, _all(_logprobs_fit)),
    Feature("prompt logprobs", {"prompt_logprobs": 1}, _prompt_is_scored),
    Feature(
        "penalties", {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3}, lambda a: None
    ),
    Feature(
        "allowed ids", {"allowed_token_ids": tuple(range(32, 127))}, _all(lambda a: all(32 <= i < 127 for i in _ids(a)))
    ),
    Feature("bias", {"logit_bias": {101: -100.0, 32: -100.0}}, lambda answers: None, clashes=("choice",)),
    Feature(
        "bad words",
        {"bad_word_ids": ((110, 111), (65,))},
        _all(lambda a: 65 not in _ids(a) and (110, 111) not in zip(_ids(a), _ids(a)[1:], strict=False)),
        clashes=("choice",),
    ),
    Feature("min tokens", {"min_tokens": 6}, _all(lambda a: len(_ids(a)) >= 6), clashes=("choice",)),
    Feature("stop ids", {"stop_token_ids": (44, 46)}, _all(lambda a: 44 not in _ids(a)[:-1]), clashes=("choice",)),
    Feature("choice", {"structured": StructuredSpec(kind="choice", source=json.dumps(TEXTS))}, _all(_spells_a_choice)),
    Feature(
        "reasoning budget",
        {"extra": {"reasoning_limit": {"tokens": 3, "start": [60], "end": [35, 62], "inside": True}}},
        _all(_reasons_briefly),
        clashes=("choice", "schema"),
    ),
    Feature(
        "schema",
        {
            "structured": StructuredSpec(kind="json_schema", source=json.dumps(SCHEMA), any_whitespace=False),
            "max_tokens": 30,
        },
        _all(_is_json),
        clashes=("allowed ids", "choice", "bias", "bad words", "stop ids"),
    ),
    Feature("prediction", {"prediction_ids": tuple(b"yes, of course not")}, lambda answers: None),
    Feature("salt", {}, lambda answers: None, request={"cache_salt": "tenant"}),
    Feature("urgency", {}, lambda answers: None, request={"priority": -1}),
    Feature(
        "tenant", {}, lambda answers: None, request={"client": "acme", "weight": 4.0, "cache_salt": "acme\0"}
    ),  # what the server makes of a request with a tenant's key
)

PICTURE_FEATURES = (
    *FEATURES,
    Feature("adapter", {}, lambda answers: None, request={"adapters": (WeightedAdapter(AdapterRef(name="all")),)}),
    Feature(
        "stream",
        {"stream_interval": 3},
        _all(lambda a: all(len(delta.token_ids) <= 3 + MAX_DRAFTS for delta in a.deltas)),
    ),
)
"""What a request with pictures in its prompt may ask for."""
