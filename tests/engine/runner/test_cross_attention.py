"""Sources in the engine: how a step is cut where they end, and who fails when something about them does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from whisper_rig import ENGLISH, LENGTH, ROOM, START, Model, speech

from quire.engine.multimodal.cross_attention import CrossAttentionInputs
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.multimodal.encoder_inputs import encoder_input_info, max_positions
from quire.engine.runner.input_batch import StepInputs
from quire.errors import BadRequest, PluginError
from quire.hooks import registry
from quire.types import Chunk, Plan
from quire_models import (
    Attention,
    CrossAttention,
    CrossAttentionBlock,
    Decoder,
    EncoderInput,
    KVCache,
    KvShape,
    LayerNorm,
    Mlp,
    Positions,
)
from quire_models.towers.audio import AudioEncoderModule

PAGE = 16
ROWS, SPACE = 70, 128
"""Of a source of the tests of cutting, and positions before its text."""


# --- parts -------------------------------------------------------------------------------------------


def test_text_begins_where_pages_of_all_usual_sizes_do() -> None:
    assert [EncoderInput(length).padded_length for length in (1, 64, 65, 1500)] == [64, 64, 128, 1536]


def test_both_kinds_of_attention_of_a_block_must_keep_the_same() -> None:
    own = Attention(4, 2, 16)
    with pytest.raises(ValueError, match=r"stores KvShape\(kv_heads=2, .*cross-attention KvShape\(kv_heads=4, "):
        CrossAttentionBlock(own, CrossAttention(4, 4, 16), Mlp(8), LayerNorm())
    assert CrossAttentionBlock(own, CrossAttention(8, 2, 16), Mlp(8), LayerNorm()).cross.kv_shape == KvShape(2, 16)


def decoder(source: EncoderInput | None = None, positions: Positions | None = None) -> Decoder:
    return Decoder(vocab=8, width=8, blocks=(), norm=None, encoder_input=source, positions=positions)


def test_positions_of_a_source_come_on_top_of_those_of_text() -> None:
    assert max_positions(None, decoder()) is None
    assert max_positions(100, decoder(positions=Positions(40))) == 40
    assert max_positions(30, decoder(EncoderInput(ROWS), Positions(40))) == SPACE + 30
    assert max_positions(None, decoder(EncoderInput(ROWS), Positions(40))) == SPACE + 40
    assert max_positions(None, decoder(EncoderInput(ROWS))) is None


def test_a_source_needs_one_mapper() -> None:
    assert encoder_input_info(decoder(), ("image", "audio"), "Any", PAGE, 9) is None
    for modalities in ((), ("image", "audio")):
        with pytest.raises(
            PluginError, match=f"needs input mappers of exactly one modality; there are {len(modalities)}"
        ):
            encoder_input_info(decoder(EncoderInput(ROWS)), modalities, "Any", PAGE, 200)


# --- how a step is cut -------------------------------------------------------------------------------


class Kept:
    """Stands for a model and its adapters: what was stored, and for which chunks something was bound."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.stored: list[tuple[list[float], list[int]]] = []
        self.bound: list[list[tuple[int, int, int]]] = []

    def store(self, rows: torch.Tensor, places: Any) -> None:
        self.stored.append((rows[:, 0].tolist(), places.slot_mapping.tolist()))

    def bind(self, plan: Plan) -> tuple[None, dict[int, str]]:
        self.bound.append([(chunk.seq_id, chunk.start, len(chunk.token_ids)) for chunk in plan.chunks])
        return None, {}


def sources(kept: Any, alone: bool = False) -> CrossAttentionInputs:
    kv: Any = KVCache((), (), PAGE)
    return CrossAttentionInputs(
        EncoderInput(ROWS), kept, kv, kept, max_tokens=64, max_model_len=SPACE + 40, batch_invariant=alone
    )


def step(*spans: tuple[int, int]) -> tuple[Plan, StepInputs]:
    """Chunks of seqs 0, 1, …, each from a position up to another; seq i has pages 100 i, 100 i + 1, …"""
    chunks = tuple(Chunk(i, begin, tuple(range(begin, end)), (), True) for i, (begin, end) in enumerate(spans))
    positions = np.concatenate([np.arange(begin, end) for begin, end in spans])
    owners = np.repeat(np.arange(len(spans)), [end - begin for begin, end in spans])
    pages = (100 * np.arange(len(spans))[:, None] + np.arange(-(-max(end for _, end in spans) // PAGE))).astype(
        np.int32
    )
    layout = StepInputs(
        tokens=positions,
        positions=positions,
        slot_mapping=1000 * owners + positions,
        starts=np.cumsum([0, *(end - begin for begin, end in spans)]),
        contexts=np.array([end for _, end in spans]),
        pages=pages,
        prompt_lens=np.full(len(spans), 150, np.int32),
    )
    return Plan(chunks=chunks), layout


def test_text_is_counted_from_where_it_begins_and_has_the_pages_before_as_its_source() -> None:
    made = sources(Kept())
    plan, layout = step((140, 141), (130, 133), (133, 134))
    text = made.text(plan, layout, np.array([0, 3, 4]))
    assert text is not None
    assert text.plan is plan
    assert text.selected.tolist() == [0, 3, 4]
    assert text.inputs.positions.tolist() == [12, 2, 3, 4, 5]
    assert text.inputs.slot_mapping is layout.slot_mapping
    assert text.inputs.contexts.tolist() == [13, 5, 6]
    assert text.inputs.pages.tolist() == [[8], [108], [208]]
    assert text.inputs.prompt_lens.tolist() == [22] * 3
    assert text.inputs.sources is not None
    assert text.inputs.sources[:, 0].tolist() == [0, 100, 100, 100, 200]
    rows = made.metadata(text.inputs)
    assert rows is not None
    assert rows.query_starts.tolist() == [0, 1, 2, 3, 4, 5]
    assert rows.contexts.tolist() == [ROWS] * 5 == rows.contexts_host.tolist()
    assert rows.pages.tolist()[3] == list(range(100, 108))


def test_chunks_that_end_in_a_source_or_begin_in_one_leave_their_text() -> None:
    plan, layout = step((100, 130), (3, 90), (135, 136), (0, 128))
    text = sources(Kept()).text(plan, layout, np.array([29, 117]))
    assert text is not None
    assert [(chunk.seq_id, chunk.start, chunk.token_ids) for chunk in text.plan.chunks] == [
        (0, 128, (128, 129)),
        (2, 135, (135,)),
    ]
    assert text.inputs.tokens.tolist() == [128, 129, 135]
    assert text.inputs.starts.tolist() == [0, 2, 3]
    assert text.inputs.contexts.tolist() == [2, 8]
    assert text.inputs.pages.tolist() == [[8], [208]]
    assert text.selected.tolist() == [1, 2]


def test_a_step_within_sources_leaves_nothing() -> None:
    plan, layout = step((0, 20), (100, 128))
    assert sources(Kept()).text(plan, layout, np.zeros(0, np.int64)) is None


@pytest.mark.parametrize("alone", [False, True])
def test_rows_are_stored_where_their_positions_lie(alone: bool) -> None:
    kept = Kept()
    plan, layout = step((68, 75), (0, 3), (128, 130), (60, 62))
    index = np.array([0, 1, 12, 13])  # seq 1 has no rows
    media = StepMedia(index, torch.arange(4.0)[:, None])
    sources(kept, alone).store(plan, layout, media, {1: "its tower failed"})
    slot_mapping = [68, 69, 3060, 3061]
    if alone:
        assert kept.stored == [([float(i)], [slot]) for i, slot in enumerate(slot_mapping)]
        assert kept.bound == [[(0, 68, 1)], [(0, 69, 1)], [(3, 60, 1)], [(3, 61, 1)]]
    else:
        assert kept.stored == [([0.0, 1.0, 2.0, 3.0], slot_mapping)]
        assert kept.bound == [[(0, 68, 2), (3, 60, 2)]]


def test_without_rows_nothing_is_stored() -> None:
    kept = Kept()
    plan, layout = step((80, 90))
    sources(kept).store(plan, layout, None, {})
    assert kept.stored == kept.bound == []


# --- in an engine ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def rig(model: Model) -> Iterator[Rig]:
    with rig_of(model.folder, registry.load(None), num_pages=50, max_num_batched_tokens=300) as made:
        yield made


def test_who_cannot_be_heard_fails_alone(model: Model, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    hear, found = AudioEncoderModule.forward, registry.load(None)
    prompts = [model.prompt(found, rig.engine.info, speech(seed), [START, ENGLISH]) for seed in (1, 2, 3)]
    bad = prompts[1].media[0].tensors["frames"]

    def deaf(self: Any, items: Any, call: Any) -> Any:
        if any(torch.equal(item["frames"], bad) for item in items):
            raise ArithmeticError("too loud")
        return hear(self, items, call)

    monkeypatch.setattr(AudioEncoderModule, "forward", deaf)
    ids = [rig.add(prompt, greedy(8, ignore_eos=True)) for prompt in prompts]
    answers = rig.drain()
    assert "too loud" in (answers[ids[1], 0].last.error or ("", ""))[1]
    for i, seed in ((0, 1), (2, 3)):
        assert answers[ids[i], 0].token_ids == model.greedy(speech(seed), [START, ENGLISH], 8)


def test_the_rows_of_a_source_are_let_go_when_they_are_stored(model: Model) -> None:
    found = registry.load(None)
    with rig_of(model.folder, found, max_num_batched_tokens=60, encoder_cache_bytes=0) as rig:
        rig.add(model.prompt(found, rig.engine.info, speech(1), [START]), greedy(2, ignore_eos=True))
        kept = []
        while rig.engine.has_work:
            rig.engine.step()
            kept.append(rig.engine.stats().num_encoder_cache_bytes)
        assert kept[:2] == [LENGTH * 64 * 4, 0]  # its 100 rows take two steps of 60 tokens


def test_what_lies_between_a_source_and_its_text_is_never_read(model: Model, rig: Rig) -> None:
    prompt = model.prompt(registry.load(None), rig.engine.info, speech(1), [START, ENGLISH])
    runner: Any = rig.engine._runner
    for pool in (*runner.kv.k, *runner.kv.v):
        pool.fill_(torch.nan)
    request_id = rig.add(prompt, greedy(8, ignore_eos=True))
    assert rig.drain()[request_id, 0].token_ids == model.greedy(speech(1), [START, ENGLISH], 8)


def test_a_model_without_a_mapper_for_its_source_stops_the_start(model: Model) -> None:
    found = registry.load(None)
    mappers = dict(found.by_hook("quire_input_mappers"))
    assert mappers.pop("whisper/audio")
    lacking = replace(found, records={**found.records, "quire_input_mappers": mappers})
    with pytest.raises(PluginError, match="needs input mappers of exactly one"), rig_of(Path(model.folder), lacking):
        pass


def test_a_medium_that_does_not_stand_at_the_beginning_is_refused(model: Model, rig: Rig) -> None:
    prompt = model.prompt(registry.load(None), rig.engine.info, speech(1), [START])
    (item,) = prompt.media
    for changes in ({"start": 1}, {"length": LENGTH - 1}, {"positions": np.zeros((1, LENGTH), np.int64)}):
        with pytest.raises(BadRequest, match=f"must be at positions 0 to {LENGTH - 1}, in order; it is at"):
            rig.add(replace(prompt, media=(replace(item, **changes),)))
    with pytest.raises(BadRequest, match="no text after the audio"):
        rig.add(replace(prompt, token_ids=prompt.token_ids[:ROOM]))
