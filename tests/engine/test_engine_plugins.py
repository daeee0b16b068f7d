"""An engine with logits processors and grammar back ends of plugins: what they change, and what their failures end."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bit_masks import allow
from engine_rig import Rig, greedy, rig_of

from quire.errors import BadRequest
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import Context, GrammarBackend, LogitsProcessor, Registry
from quire.types import SeqDelta
from quire_testing.tiny import tiny_llama

PROMPT = list(b"To be or not")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def plugged(**records: Any) -> Registry:
    """The bundled plugins and some more records, by the last words of their hooks."""
    found = registry.load(None)
    more = {
        f"quire_{hook}": {**found.by_hook(f"quire_{hook}"), record.name: record} for hook, record in records.items()
    }
    origin = {(f"quire_{hook}", record.name): "mine" for hook, record in records.items()}
    return replace(found, records={**found.records, **more}, origin={**found.origin, **origin})


class Shout:
    """Adds to the logit of "!", as much as a request says; a negative number is more than it can bear."""

    def start(self, params: SamplingParams) -> float | None:
        return params.extra.get("shout")

    def apply(self, logits: torch.Tensor, rows: Any) -> None:
        if any(row.state < 0 for row in rows):
            raise ArithmeticError("too quiet")
        logits[:, ord("!")] += torch.tensor([row.state for row in rows])


SHOUT = LogitsProcessor("shout", {"shout": float}, lambda context: Shout())


def test_a_processor_of_a_plugin_changes_the_output_of_requests_that_use_it(folder: Path) -> None:
    with rig_of(folder) as rig:
        (plain,) = rig.tokens([PROMPT], greedy(6))
    with rig_of(folder, plugged(logits_processors=SHOUT)) as plugin_rig:
        found = plugin_rig.tokens([PROMPT, PROMPT], [greedy(6), greedy(6, extra={"shout": 1000})])
    assert found == [plain, [ord("!")] * 6]


def test_a_processor_that_raises_fails_its_request_only(folder: Path) -> None:
    found = plugged(logits_processors=SHOUT)
    with rig_of(folder, found) as rig:
        bad, good = rig.add(PROMPT, greedy(6, extra={"shout": -1.0})), rig.add(PROMPT, greedy(6))
        answers = rig.drain()
    assert answers[good, 0].last.finish_reason == "length"
    error = answers[bad, 0].last.error
    assert error == ("PluginFailed", "Plugin 'mine' failed: ArithmeticError: too quiet")
    counter: Any = found.counter
    assert [row["errors"] for row in counter.snapshot() if row["plugin"] == "mine"] == [1]


class Spell:
    """A grammar whose only text is its source. jumps: whether it says that nothing else can come."""

    def __init__(self, source: str, jumps: bool = False) -> None:
        self.ids, self.place, self.jumps = list(source.encode()), 0, jumps

    def start(self) -> Spell:
        return Spell(bytes(self.ids).decode(), self.jumps)

    @property
    def is_terminated(self) -> bool:
        return self.place == len(self.ids)

    is_accepting = is_terminated

    def fill(self, mask: torch.Tensor) -> None:
        allow(mask, self.ids[self.place : self.place + 1])

    def accept(self, token_id: int) -> bool:
        self.place += 1
        return token_id == self.ids[self.place - 1]

    def rollback(self, count: int) -> None:
        self.place -= count

    def jump_forward(self) -> list[int]:
        return self.ids[self.place :] if self.jumps else []


def speller(compile_text: Any = lambda asked: Spell(asked.source)) -> GrammarBackend:
    return GrammarBackend("speller", frozenset({"text"}), lambda context: SimpleNamespace(compile=compile_text))


TEXT = "hello world, how do you do today?"


@pytest.mark.parametrize("num_pages", [64, 4])
def test_a_grammar_forces_its_text_and_ends_it(folder: Path, num_pages: int) -> None:
    with rig_of(folder, plugged(grammar_backends=speller()), num_pages=num_pages) as rig:
        spelled = SamplingParams(max_tokens=None, structured=StructuredSpec(kind="text", source=TEXT))
        rig.add(PROMPT, spelled)
        rig.drain()  # the grammar is compiled and kept: from here on nothing depends on when that happens
        other = rig.add(PROMPT, greedy(30, ignore_eos=True))
        request_id = rig.add(PROMPT, spelled)
        answers = rig.drain()
        preempted = rig.engine.stats().num_preemptions_recompute_total
    assert bytes(answers[request_id, 0].token_ids) == TEXT.encode()
    assert answers[request_id, 0].last.finish_reason == "stop"
    assert len(answers[other, 0].token_ids) == 30
    assert (preempted > 0) == (num_pages == 4)


def test_a_text_that_is_forced_is_computed_in_one_step(folder: Path) -> None:
    backend = speller(lambda asked: Spell(asked.source, jumps=True))
    with rig_of(folder, plugged(grammar_backends=backend)) as rig:
        request_id = rig.add(
            PROMPT, SamplingParams(max_tokens=None, structured=StructuredSpec(kind="text", source=TEXT))
        )
        answer = rig.drain()[request_id, 0]
    assert bytes(answer.token_ids) == TEXT.encode()
    assert [len(delta.token_ids) for delta in answer.deltas] == [len(TEXT)]


def test_a_back_end_is_built_before_anybody_asks(folder: Path) -> None:
    built = threading.Event()

    def build(context: Context) -> Any:
        built.set()
        return SimpleNamespace(compile=lambda asked: Spell(asked.source))

    with rig_of(folder, plugged(grammar_backends=GrammarBackend("speller", frozenset({"text"}), build, 1000))):
        assert built.wait(timeout=60)


def test_others_run_while_a_grammar_is_compiled(folder: Path) -> None:
    gate = threading.Event()

    def slow(asked: StructuredSpec) -> Spell:
        gate.wait()
        return Spell(asked.source)

    with rig_of(folder, plugged(grammar_backends=speller(slow))) as rig:
        waiting = rig.add(PROMPT, greedy(structured=StructuredSpec(kind="text", source="abc")))
        other = rig.add(PROMPT)
        deltas: list[SeqDelta] = []
        while not any(delta.finish_reason for delta in deltas):
            deltas += rig.engine.step()
        assert {delta.request_id for delta in deltas} == {other}
        gate.set()
        assert bytes(rig.drain()[waiting, 0].token_ids) == b"abc"


@pytest.mark.parametrize("error", [BadRequest("no such spell"), KeyError("oops")])
def test_a_grammar_that_cannot_be_compiled_ends_its_request(folder: Path, error: Exception) -> None:
    def fail(asked: StructuredSpec) -> Spell:
        raise error

    with rig_of(folder, plugged(grammar_backends=speller(fail))) as rig:
        bad, good = rig.add(PROMPT, greedy(structured=StructuredSpec(kind="text", source="x"))), rig.add(PROMPT)
        answers = rig.drain()
    assert answers[good, 0].last.finish_reason == "length"
    first_delta_sent = answers[bad, 0].last
    assert first_delta_sent.finish_reason == "error"
    assert first_delta_sent.error is not None
    assert first_delta_sent.error[0] == ("BadRequest" if isinstance(error, BadRequest) else "PluginFailed")


def test_choices_constrain_the_output(folder: Path) -> None:
    found = registry.load(None)
    tokenizer = SimpleNamespace(
        special_ids={256, 257, 258, 259},
        vocab={str(i): i for i in range(256)},
        token_bytes=lambda token_id: bytes([token_id]),
    )
    from quire.engine.build import build_engine
    from quire.settings.model_config import ModelConfig

    config = ModelConfig(model=str(folder), dtype="float32", device="cpu", num_pages=64)
    rig = Rig(build_engine(config, found, tokenizer=lambda: tokenizer))
    params = [
        SamplingParams(
            seed=i,
            max_tokens=9,
            structured=StructuredSpec(kind="choice", source='["yes", "yesterday", "no"]', backend="choice"),
        )
        for i in range(20)
    ]
    found_texts = {bytes(token for token in tokens if token < 256) for tokens in rig.tokens([PROMPT] * 20, params)}
    rig.engine.close()
    assert found_texts <= {b"yes", b"yesterday", b"no"}
    assert len(found_texts) > 1
