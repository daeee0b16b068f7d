"""Logits processors and grammars of plugins, row by row."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bit_masks import allow
from sampler_rig import EOS, OPS, VOCAB, chooser, make_sampler, one, random_logits

from quire.engine.processors.logits_processors import LogitsProcessors
from quire.engine.sampling.sampler import Sampler, SamplingState
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker
from quire.engine.structured.grammars import Grammars
from quire.errors import BadRequest, PluginFailed, PluginOff
from quire.hooks.call_stats import PluginCallStats
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import Context, LogitsProcessor, Registry


class Favour:
    """Raises the logit of the token that a request names, by the number of tokens so far."""

    def start(self, params: SamplingParams) -> int | None:
        return params.extra.get("favour")

    def apply(self, logits: torch.Tensor, rows: Any) -> None:
        for i, row in enumerate(rows):
            if row.state == 13:
                raise ValueError("thirteen")
            logits[i, row.state + len(row.output_ids)] = 1000.0


FAVOUR = LogitsProcessor("favour", {"favour": int}, lambda context: Favour())


def test_a_processor_changes_only_rows_that_use_it() -> None:
    sampler, logits = make_sampler(FAVOUR), random_logits(3)
    rows = [
        chooser(temperature=0, sampler=sampler),
        chooser((), (1, 1), temperature=0, extra={"favour": 20}, sampler=sampler),
        chooser(extra={"favour": 30}, sampler=sampler),
    ]
    assert [s.token_id for s in sampler.sample(logits.clone(), rows)] == [int(logits[0].argmax()), 22, 30]
    assert rows[0].is_plain_greedy


def test_a_processor_that_raises_fails_only_rows_that_use_it() -> None:
    sampler, logits = make_sampler(FAVOUR), random_logits(2)
    rows = [chooser(temperature=0, sampler=sampler), chooser(extra={"favour": 13}, sampler=sampler)]
    good, bad = sampler.sample(logits.clone(), rows)
    assert good.error is None
    assert bad.error is not None
    assert "thirteen" in bad.error[1]


@pytest.mark.parametrize(("fields", "spared"), [({"favour": int}, True), ({}, False)])
def test_a_disabled_processor_fails_requests_that_use_it_and_all_if_it_is_for_all(fields: Any, spared: bool) -> None:
    class Broken(Favour):
        def start(self, params: SamplingParams) -> int | None:
            raise ValueError("broken")

    record = LogitsProcessor("broken", fields, lambda context: Broken(), has_defaults=lambda context: True)
    found = Registry(records={"quire_logits_processors": {"broken": record}}, counter=PluginCallStats(max_faults=1))
    processors = LogitsProcessors(found, lambda plugin: Context())
    with pytest.raises(PluginFailed, match="broken"):
        processors.start(SamplingParams(), ())
    with pytest.raises(PluginOff):
        processors.start(SamplingParams(extra={"favour": 1}), ())
    with nullcontext() if spared else pytest.raises(PluginOff):
        assert processors.start(SamplingParams(), ()) == ()


@pytest.mark.parametrize(
    ("fields", "has_defaults", "is_started"),
    [
        ({"favour": int}, False, False),
        ({"favour": int}, True, True),
        ({}, False, True),
    ],
)
def test_a_processor_starts_without_its_fields_only_if_it_has_defaults(
    fields: Any, has_defaults: bool, is_started: bool
) -> None:
    class Always(Favour):
        def start(self, params: SamplingParams) -> int | None:
            return 5

    record = LogitsProcessor("always", fields, lambda context: Always(), has_defaults=lambda context: has_defaults)
    processors = LogitsProcessors(Registry(records={"quire_logits_processors": {"always": record}}), _no_context)
    assert len(processors.start(SamplingParams(), ())) == is_started
    assert len(processors.start(SamplingParams(extra={"favour": 1}), ())) == bool(fields or is_started)


def _no_context(plugin: str) -> Context:
    return Context()


class Spoil:
    """Leaves logits that cannot be sampled, in the way that a request names."""

    def start(self, params: SamplingParams) -> str | None:
        return params.extra.get("spoil")

    def apply(self, logits: torch.Tensor, rows: Any) -> None:
        for i, row in enumerate(rows):
            if row.state == "shape":
                logits.resize_(len(rows), 5)
            if row.state == "type":
                logits.data = logits.half()
            if row.state == "nan":
                logits[i, 7] = torch.nan


SPOIL = LogitsProcessor("spoil", {"spoil": str}, lambda context: Spoil())


@pytest.mark.parametrize(
    ("way", "said"), [("shape", "into torch.float32 [1, 5]"), ("type", "into torch.float16"), ("nan", "NaN")]
)
def test_a_processor_that_spoils_logits_fails_its_own_row_and_is_named(way: str, said: str) -> None:
    sampler, logits = make_sampler(SPOIL), random_logits(3)
    rows = [chooser(temperature=0), chooser(extra={"spoil": way}, sampler=sampler), chooser(temperature=0)]
    first, bad, last = sampler.sample(logits.clone(), rows)
    assert [first.token_id, last.token_id] == logits[[0, 2]].argmax(-1).tolist()
    assert bad.error is not None
    assert "Plugin" in bad.error[1]
    assert said in bad.error[1]


def test_of_two_rows_of_one_processor_only_that_with_nan_fails() -> None:
    sampler, logits = make_sampler(SPOIL), random_logits(2)
    rows = [chooser(extra={"spoil": way}, temperature=0, sampler=sampler) for way in ("nan", "not")]
    bad, good = sampler.sample(logits.clone(), rows)
    assert (good.error, good.token_id) == (None, int(logits[1].argmax()))
    assert bad.error is not None


def test_nan_of_the_model_is_not_blamed_on_a_processor() -> None:
    sampler, logits = make_sampler(FAVOUR), random_logits(1)
    logits[0, 3] = torch.nan
    (sample,) = sampler.sample(logits, [chooser(extra={"favour": 20}, sampler=sampler)])
    assert sample.error is None or "Plugin" not in sample.error[1]


@pytest.mark.parametrize(
    ("extra", "said"), [({"favor": 1}, "favour"), ({"favour": "x"}, "int"), ({"favour": True}, "int")]
)
def test_extra_fields_are_checked(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        make_sampler(FAVOUR)._processors.check(SamplingParams(extra=extra))


class Countdown:
    """A matcher that allows 30, 29, … and is done after 28."""

    def __init__(self, jumps: bool = False) -> None:
        self.next, self.jumps = 30, jumps

    @property
    def is_terminated(self) -> bool:
        return self.next == 27

    @property
    def is_accepting(self) -> bool:
        return self.next == 28

    def fill(self, mask: torch.Tensor) -> None:
        allow(mask, [self.next])

    def accept(self, token_id: int) -> bool:
        self.next -= 1
        return token_id == self.next + 1

    def rollback(self, count: int) -> None:
        self.next += count

    def jump_forward(self) -> list[int]:
        return list(range(self.next, 27, -1)) if self.jumps else []


def test_a_grammar_decides_which_tokens_may_come_and_when_it_is_over() -> None:
    row = chooser(temperature=0)
    constrained = SamplingState(row.params, 0, [], constraint=Constraint("p", Countdown()))
    sampler, rows = make_sampler(), [constrained, row]
    samples = [sampler.sample(random_logits(2, seed=i), rows, sampler.start_masks(rows))[0] for i in range(3)]
    assert [(s.token_id, s.constraint_done) for s in samples] == [(30, False), (29, False), (28, True)]


@pytest.mark.parametrize(
    ("asked", "jumps"),
    [
        ({}, True),
        ({"repetition_penalty": 1.5}, True),
        ({"min_tokens": 3}, True),
        ({"logprobs": 0}, False),
        ({"allowed_token_ids": [30, 29, 28]}, False),
        ({"bad_word_ids": [[5]]}, False),
    ],
)
def test_forced_tokens_follow_in_one_step_unless_a_request_needs_or_forbids_otherwise(
    asked: dict[str, Any], jumps: bool
) -> None:
    row = chooser(temperature=0, **asked)
    constrained = SamplingState(row.params, 0, [], row.edits, constraint=Constraint("p", Countdown(jumps=True)))
    sampler = make_sampler()
    samples = [one(random_logits(), constrained, sampler) for _ in range(1 if jumps else 3)]
    assert [(s.token_id, s.jump_forward_ids) for s in samples] == (
        [(30, (29, 28))] if jumps else [(30, ()), (29, ()), (28, ())]
    )
    assert samples[-1].constraint_done
    assert constrained.output_ids == [30, 29, 28]


def test_a_grammar_that_cannot_go_on_says_whose_fault_it_is() -> None:
    class Lost(Countdown):
        def fill(self, mask: torch.Tensor) -> None:
            raise BadRequest("Too ambiguous.")

    class Broken(Countdown):
        def accept(self, token_id: int) -> bool:
            raise ValueError("oops")

    rows = [
        SamplingState(SamplingParams(temperature=0), 0, [], constraint=Constraint("p", matcher()))
        for matcher in (Lost, Broken, Countdown)
    ]
    sampler = make_sampler()
    lost, broken, good = sampler.sample(random_logits(3), rows, sampler.start_masks(rows))
    assert lost.error == ("BadRequest", "Too ambiguous.")
    assert broken.error == ("PluginFailed", "Plugin 'p' failed: ValueError: oops")
    assert good.token_id == 30


def test_a_grammar_that_may_end_allows_the_end_of_text() -> None:
    constraints = ConstraintTracker(Registry(), VOCAB, EOS)
    sampler = Sampler(LogitsProcessors(Registry(), lambda plugin: Context()), constraints, OPS)
    logits = random_logits()
    logits[0, 7] = 99.0
    row = SamplingState(SamplingParams(temperature=0), 0, [], constraint=Constraint("p", Countdown()))
    samples = [one(logits, row, sampler) for _ in range(3)]
    assert [(s.token_id, s.constraint_done) for s in samples] == [(30, False), (29, False), (7, True)]


def test_a_grammar_resumes_after_the_output_so_far() -> None:
    grammar: Any = SimpleNamespace(start=Countdown)
    constraint = ConstraintTracker(Registry(), VOCAB).start("p", grammar, [30, 29])
    assert isinstance(constraint.matcher, Countdown)
    assert constraint.matcher.next == 28


def test_an_unknown_kind_of_grammar_is_refused_with_those_known() -> None:
    with pytest.raises(BadRequest, match="none"):
        grammars = Grammars(Registry(), lambda plugin: Context(), ConstraintTracker(Registry(), VOCAB))
        grammars.submit(SamplingParams(structured=StructuredSpec(kind="regex", source="a+")))
