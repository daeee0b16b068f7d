"""A grammar that takes too long for its tokens is ended, and nothing else is."""

import json
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_rig import Rig
from structured_rig import PROMPT, structured_rig

from quire.engine.structured import constraint_tracker as module
from quire.engine.structured.constraint_tracker import TOKENS_AHEAD, ConstraintTracker
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import Registry
from quire_kernels.reference import mask_logits

AMBIGUOUS = """
start: (r0 | r1){2,4}
r0: (r1 r2){2,4} | r2+
r1: (r2 r3){2,4} | r3+
r2: (r3 | r4){2,4} | r4+
r3: (r4 r5){2,4} | r5*
r4: (/[a-zA-Z ,.]/ | r5){2,4}
r5: /[a-zA-Z]/+ | /[ ,.]/
"""


class Patient:
    """A grammar and its matcher, which allows everything."""

    is_terminated = is_accepting = False

    def start(self) -> "Patient":
        return self

    def fill(self, mask: torch.Tensor) -> None:
        mask.fill_(-1)

    def accept(self, token: int) -> bool:
        return True

    def jump_forward(self) -> tuple[int, ...]:
        return ()


def failures(monkeypatch: pytest.MonkeyPatch, seconds: float, masks: int) -> list[int]:
    """Which of so many masks fail, if each moment that the clock is read is so much after the one before."""
    clock = (seconds * number for number in count())
    monkeypatch.setattr(module, "thread_time", lambda: next(clock))
    made = ConstraintTracker(Registry(), 32, token_time_s=0.01)
    constraint = made.start("p", Patient(), [], param="guided_grammar")
    failed = []
    for number in range(masks):
        filling = made.start_fill([(0, constraint)])
        assert filling is not None
        _, first_delta_sent = made.apply(torch.zeros(1, 32), filling, mask_logits)
        if first_delta_sent:
            assert first_delta_sent[0][0] == "BadRequest"
            assert "more than 10 ms per token" in first_delta_sent[0][1]
            assert first_delta_sent[0][2] == "guided_grammar"
            failed.append(number)
        else:
            made.advance(constraint, 3, jumps=True)
    made.close()
    return failed


def test_a_grammar_within_its_time_goes_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures(monkeypatch, 0.004, 300) == []  # twice for each token


def test_a_grammar_that_takes_more_ends_when_what_it_had_ahead_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *rest = failures(monkeypatch, 0.015, 60)  # 30 ms for each token, 10 of which it has
    assert first == TOKENS_AHEAD // 2 + 1
    assert rest == list(range(first + 1, 60))


def test_seqs_of_one_grammar_have_one_account() -> None:
    made = ConstraintTracker(Registry(), 32)
    cost = module.MaskCost()
    one, other = (made.start("p", Patient(), [], cost=cost) for _ in range(2))
    made.advance(one, 1, jumps=False)
    made.advance(other, 2, jumps=False)
    assert cost.tokens == 2
    assert cost.seconds > 0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with structured_rig(tmp_path_factory.mktemp("costly")) as made:
        yield made


def test_an_ambiguous_grammar_ends_its_own_request_only(rig: Rig) -> None:
    asked = StructuredSpec(kind="grammar", source=AMBIGUOUS, backend="guidance")
    wild = rig.add(PROMPT, SamplingParams(seed=1, max_tokens=80, structured=asked))
    free = rig.add(PROMPT, SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
    found: Any = rig.drain()
    assert found[wild, 0].last.error[0] == "BadRequest"
    assert "cannot be followed any further" in found[wild, 0].last.error[1]
    assert len(found[free, 0].token_ids) == 80


def test_rows_of_a_parser_are_bounded_for_what_clients_put_together(rig: Rig) -> None:
    """The library's own bound would let one mask take a second."""
    options = SimpleNamespace(kind="json_schema", source=json.dumps({"enum": [f"value {i}" for i in range(1000)]}))
    request = rig.add(PROMPT, SamplingParams(max_tokens=40, structured=StructuredSpec(**vars(options))))
    assert rig.drain()[request, 0].last.finish_reason == "stop"
