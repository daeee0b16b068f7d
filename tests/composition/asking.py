"""How a request is asked in the ways of running that the table of features lists."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from composition.features import Feature, Setting
from engine_rig import Answer, Rig, greedy, make_rig, random_ids
from thread_ranks import launch_thread

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Registry
from quire.types import AdapterRef, Prompt, WeightedAdapter

PLAIN = Setting("plain", {"enable_prefix_caching": False, "max_num_batched_tokens": 64, "max_num_seqs": 8})

Rigs = Callable[[Mapping[str, Any]], Rig]
Asked = Sequence[int] | Prompt
Others = Callable[[random.Random, int], tuple[Asked, Mapping[str, Any]]]


@contextmanager
def rigs_of(folder: Path, found: Registry, prepare: Callable[[Rig], None] = lambda rig: None) -> Iterator[Rigs]:
    """Engines by their settings, made when first needed, each put through `prepare`."""
    made: list[Rig] = []

    @cache
    def rig(settings: str) -> Rig:
        made.append(make_rig(folder, found, launch_thread, **json.loads(settings)))
        prepare(made[-1])
        return made[-1]

    yield lambda settings: rig(json.dumps(dict(settings), sort_keys=True))
    for each in made:
        each.engine.close()


def settings_of(*ways: Setting) -> dict[str, Any] | None:
    """The settings of all ways, or None if they contradict each other."""
    merged: dict[str, Any] = {}
    for way in ways:
        for name, value in way.settings.items():
            if merged.get(name, value) != value:
                return None
            merged[name] = value
    return merged


def some_text(rng: random.Random, number: int) -> tuple[Asked, Mapping[str, Any]]:
    """The prompt of another request, and what is special about it."""
    return random_ids(rng, rng.randrange(4, 30)), {}


def ask(
    rig: Rig,
    prompt: Asked,
    features: tuple[Feature, ...],
    ways: tuple[Setting, ...],
    others: Others = some_text,
) -> list[Answer]:
    """Answers to the one request, after and beside the others that the ways of running call for."""
    merged: dict[str, Any] = {"max_tokens": 14, "temperature": 0, "ignore_eos": False}
    request: dict[str, Any] = {}
    for feature in features:
        merged |= feature.params
        request |= feature.request
    params = SamplingParams(**merged)
    assert rig.engine._tiers.flush(60)
    if any(way.warm for way in ways):
        rig.add(prompt, params, **request)
        rig.drain()
    if any(way.from_tier for way in ways):
        assert rig.engine._tiers.flush(60)
        rig.engine.reset_prefix_cache()
    _add_others(rig, ways, others)
    return _answers(rig, rig.add(prompt, params, **request))


def beams(
    rig: Rig,
    prompt: Asked,
    way: Setting,
    others: Others = some_text,
    **request: Any,
) -> list[Answer]:
    """The three best continuations."""
    _add_others(rig, (way,), others)
    return _answers(rig, rig.add(prompt, BeamSearchParams(beam_width=3, max_tokens=10), **request))


def _add_others(rig: Rig, ways: tuple[Setting, ...], others: Callable[..., tuple[Asked, Mapping[str, Any]]]) -> None:
    rng = random.Random(9)
    for number in range(max((way.company for way in ways), default=0)):
        prompt, request = others(rng, number)
        rig.add(prompt, greedy(14, ignore_eos=True), **request)


def _answers(rig: Rig, request_id: str) -> list[Answer]:
    answers = {index: answer for (owner, index), answer in rig.drain().items() if owner == request_id}
    return [answers[index] for index in sorted(answers)]


def same(answers: Sequence[Answer], others: Sequence[Answer]) -> bool:
    """Whether they are the same tokens, ended for the same reasons."""

    def shown(answer: Answer) -> tuple[Any, ...]:
        return answer.token_ids, answer.last.finish_reason, answer.last.stop_reason

    return [shown(answer) for answer in answers] == [shown(answer) for answer in others]


def beside(prompts: Sequence[Prompt], adapters: Sequence[str]) -> Others:
    """Requests beside the first of the prompts: every other one another of them, in turns of the base and adapters."""

    def other(rng: random.Random, number: int) -> tuple[Asked, Mapping[str, Any]]:
        name = ("", *adapters)[number % (len(adapters) + 1)]
        uses = (WeightedAdapter(AdapterRef(name=name)),) if name else ()
        prompt = prompts[1 + number // 2 % 2] if number % 2 else some_text(rng, number)[0]
        return prompt, {"adapters": uses}

    return other


def check_in_ways(rigs: Rigs, prompt: Prompt, feature: Feature, ways: Sequence[Setting], others: Others) -> None:
    """It is answered as the feature says, and the same in all these ways of running."""
    plain = ask(rigs(PLAIN.settings), prompt, (feature,), ())
    for way in ways:
        answers = ask(rigs(way.settings), prompt, (feature,), (way,), others)
        feature.check(answers)
        assert same(answers, plain), way.name
