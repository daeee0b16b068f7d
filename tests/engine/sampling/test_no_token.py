"""Rows for which no token can be chosen say whose doing that is."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_rig import Rig, make_rig
from sampler_rig import VOCAB, chooser, make_sampler, random_logits
from structured_rig import PROMPT

from quire.engine.sampling.no_token import no_token_error
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import Registry
from quire_testing.tiny import tiny_llama

CHOICE = StructuredSpec(kind="choice", source='["aaaa", "aaa"]')


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = make_rig(tiny_llama(tmp_path_factory.mktemp("tiny")), registry.load(None), num_pages=50)
    yield made
    made.engine.close()


@pytest.mark.parametrize("asked", [{"allowed_token_ids": [1]}, {"bad_word_ids": ((97,),)}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fields_that_contradict_each_other_are_the_clients_mistake(
    rig: Rig, asked: dict[str, Any], temperature: float
) -> None:
    asked_field = "allowed_token_ids" if "allowed_token_ids" in asked else "bad_words"
    params = SamplingParams(temperature=temperature, max_tokens=9, structured=CHOICE, **asked)
    request = rig.add(PROMPT, params)
    error = rig.drain()[request, 0].last.error
    assert error is not None
    message = f"No token can be chosen: `{asked_field}` and `structured_outputs` together forbid every one."
    assert error == ("BadRequest", message, asked_field)


def test_a_contradiction_may_come_in_the_midst_of_an_answer(rig: Rig) -> None:
    asked = StructuredSpec(kind="regex", source="aaab")
    request = rig.add(PROMPT, SamplingParams(max_tokens=9, structured=asked, bad_word_ids=((98,),)))
    answer = rig.drain()[request, 0]
    assert bytes(answer.token_ids) == b"aaa"
    assert answer.last.error is not None
    assert answer.last.error[0] == "BadRequest"


class Silent:
    """A matcher that allows nothing and is not done."""

    is_terminated = is_accepting = False

    def fill(self, mask: torch.Tensor) -> None:
        mask.zero_()


def test_a_matcher_that_allows_nothing_names_its_plugin() -> None:
    constraint = Constraint("quiet-plugin", Silent())  # type: ignore[arg-type]
    constraints = ConstraintTracker(Registry(), VOCAB)
    masks = constraints.start_fill([(0, constraint)])
    row = chooser(temperature=0)
    row.constraint = constraint
    row.__post_init__()
    sampler = make_sampler()
    (sample,) = sampler.sample(random_logits(), [row], masks)
    constraints.close()
    assert sample.error is not None
    assert sample.error[0] == "PluginFailed"
    assert "plugin 'quiet-plugin' allows no token" in sample.error[1]


def test_logits_that_are_no_numbers_name_the_plugins_that_changed_them() -> None:
    logits = torch.full((VOCAB,), torch.nan)
    assert "the model returned logits" in no_token_error(chooser(), logits, None, []).message
    error = no_token_error(chooser(), logits, None, ["loud"])
    assert "the model or the logits processors of plugin 'loud' returned logits" in error.message
    assert error.status == 500


def test_a_processor_that_forbids_everything_is_named() -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    row: Any = SimpleNamespace(constraint=None, params=SamplingParams(min_tokens=3), output_ids=[])
    error = no_token_error(row, logits, None, ["loud"])
    assert error.status == 500
    assert "`min_tokens` and the logits processors of plugin 'loud' together forbid" in error.message
