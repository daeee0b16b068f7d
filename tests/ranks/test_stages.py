"""How a model is cut into stages, and what goes from one to the next."""

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, random_ids, rig_of
from family_checks import plugins
from rank_rig import TWO_RANKS, TWO_STAGES
from thread_ranks import launch_thread

from quire.engine.parallel.stages.leading_runner import SentPlan
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.errors import ConfigError
from quire.types import Plan
from quire_kernels.groups.group import RankLost
from quire_kernels.groups.stage_link import StageLink
from quire_models.parts.decoder import Attention, Block, Decoder, GatedMlp
from quire_models.parts.norms import RMSNorm
from quire_models.sharding.stage_flow import StageFailed, StageFlow
from quire_models.sharding.stages import cuts
from quire_models.step.block_taps import BlockTap
from quire_testing.tiny import byte_tokenizer, reference_model, save

NORM = RMSNorm(1e-5)


def decoder(sizes: list[int], vocab: int = 8, kv_from: dict[int, int] | None = None, **options: object) -> Decoder:
    """A decoder with an MLP of each of these sizes, whose other matrices are small."""
    sources = kv_from or {}
    attention = [Attention(heads=1, kv_heads=1, head_dim=2, kv_from=sources.get(i)) for i in range(len(sizes))]
    blocks = tuple(Block(attn, GatedMlp(size), NORM) for attn, size in zip(attention, sizes, strict=True))
    return Decoder(vocab=vocab, width=4, blocks=blocks, norm=NORM, **options)


def lengths(whole: Decoder, count: int) -> list[int]:
    found = cuts(whole, count)
    assert [i for each in found for i in each] == list(range(len(whole.blocks)))
    return [len(each) for each in found]


def test_stages_have_about_as_many_weights() -> None:
    assert lengths(decoder([64] * 8), 2) == [4, 4]
    assert lengths(decoder([64] * 8), 3) == [3, 3, 2], "the head counts for the last one"
    assert lengths(decoder([192, 64, 64, 64]), 2) == [1, 3]
    table = 64 * 3 * 4 // 4 * 2  # rows of a table as large as two blocks
    assert lengths(decoder([64] * 8, table), 2) == [4, 4], "the table is at the first stage, the head at the last"
    assert lengths(decoder([64] * 8, table, tied=True), 4) == [1, 3, 3, 1], "both have a table that is also the head"
    assert lengths(decoder([64] * 8, table, has_lm_head=False), 2) == [3, 5]


def test_blocks_that_read_what_others_made_are_at_the_stage_of_these() -> None:
    assert lengths(decoder([64] * 8, kv_from={6: 2, 7: 5}), 2) == [2, 6]
    with pytest.raises(ConfigError, match=r"8 blocks, some of which must be on one stage .* can be at most 3"):
        cuts(decoder([64] * 8, kv_from={6: 2, 7: 5}), 4)
    assert lengths(decoder([64] * 8, deepstack=6), 2) == [6, 2], "features of media follow the first blocks"


def test_the_leader_is_at_the_last_stage() -> None:
    positions = [RankPosition(number, 2, 3) for number in range(6)]
    assert [each.stage.index for each in positions if each.stage is not None] == [2, 2, 1, 1, 0, 0]
    assert [each.in_stage for each in positions] == [0, 1] * 3
    assert [each.sink for each in positions] == [None, None, 0, 1, 2, 3]
    assert [each.source for each in positions] == [2, 3, 4, 5, None, None]
    assert RankPosition(1, 2, 1).stage is None


class Step:
    """A `ForwardBatch` with nothing but what blocks share."""

    def __init__(self) -> None:
        self.step_cache: dict[object, torch.Tensor] = {}


@pytest.fixture
def ends() -> tuple[StageFlow, StageFlow]:
    first, last = map(StageLink, socket.socketpair())
    return StageFlow(None, first), StageFlow(last, None)


def test_tensors_that_blocks_share_go_to_the_next_stage_with_the_hidden_states(
    ends: tuple[StageFlow, StageFlow],
) -> None:
    sent, got = Step(), Step()
    x = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    sent.step_cache = {"inputs": torch.ones(2, 2), BlockTap(1).key: torch.zeros(1, 3), object(): torch.ones(1)}
    first, last = ends
    for flow in ends:
        flow.start_plan(1)
    first.failures[3] = "no picture"
    first.send(x, sent)
    assert torch.equal(last.receive(got), x)
    assert {key: value.shape for key, value in got.step_cache.items()} == {"inputs": (2, 2), BlockTap(1).key: (1, 3)}
    assert last.failures == {3: "no picture"}


def test_plans_may_be_received_in_another_order(ends: tuple[StageFlow, StageFlow]) -> None:
    first, last = ends
    for number in (1, 2, 3):
        first.start_plan(number)
        first.send(torch.full((1, 1), float(number)), Step())
    for number in (2, 1, 3):
        last.start_plan(number)
        assert last.receive(Step()).item() == number


def test_a_failure_ends_what_is_left_of_a_plan(ends: tuple[StageFlow, StageFlow]) -> None:
    first, last = ends
    for flow in ends:
        flow.start_plan(1)
    first.send(torch.ones(1, 1), Step())
    first.fail("too warm")
    last.receive(Step())
    with pytest.raises(StageFailed, match="too warm"):
        last.receive(Step())
    first.start_plan(2)
    first.send(torch.zeros(1, 1), Step())
    last.start_plan(2)
    assert last.receive(Step()).item() == 0


def test_a_lost_stage_ends_waits(ends: tuple[StageFlow, StageFlow]) -> None:
    first, last = ends
    last.start_plan(1)
    errors: list[Exception] = []

    def wait() -> None:
        with pytest.raises(RankLost) as raised:
            last.receive(Step())
        errors.append(raised.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    first.close()
    waiting.join()
    assert errors[0].lasting  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save(reference_model("LlamaForCausalLM"), folder)
    return byte_tokenizer(folder)


BAD = 77
"""A token that a stage cannot compute."""


def refuse_bad(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the method of this name of all flows fail for it."""
    original = getattr(StageFlow, name)

    def fails(self: StageFlow, *args: Any) -> Any:
        if BAD in args[-1].tokens:
            raise ValueError("not this one")
        return original(self, *args)

    monkeypatch.setattr(StageFlow, name, fails)


@pytest.mark.parametrize("ranks", [TWO_STAGES, {**TWO_STAGES, **TWO_RANKS}], ids=["one rank each", "two ranks each"])
@pytest.mark.parametrize("stage", [0, 1])
def test_only_the_row_that_a_stage_cannot_compute_fails(
    llama: Path, monkeypatch: pytest.MonkeyPatch, stage: int, ranks: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The others have the answers that they have without it, and so have later requests."""
    caplog.set_level(logging.CRITICAL)
    prompts = [[BAD, 1, 2], *([5, 6, i] for i in range(3))]
    with rig_of(llama, plugins()) as rig:
        wanted = rig.tokens(prompts, greedy(4, ignore_eos=True, bad_word_ids=((BAD,),)))
    refuse_bad(monkeypatch, ("send", "receive")[stage])
    with rig_of(llama, plugins(), launch=launch_thread, **ranks) as rig:
        for _ in range(2):
            ids = [rig.add(prompt, greedy(4, ignore_eos=True, bad_word_ids=((BAD,),))) for prompt in prompts]
            answers = rig.drain()
            assert answers[ids[0], 0].last.finish_reason == "error"
            assert "not this one" in str(answers[ids[0], 0].last.error)
            assert [answers[request_id, 0].token_ids for request_id in ids[1:]] == wanted[1:]


def plans_of(rig: Rig, then: Callable[[int], object] = lambda _: None) -> list[list[SentPlan]]:
    """Grows with each launch: the plans in flight after it, the oldest first. then: called with the number of these."""
    runner, seen = rig.engine._runner, list[list[SentPlan]]()
    launch = runner.launch

    def seeing(plan: Plan) -> LaunchedPlan:
        launched = launch(plan)
        seen.append(list(runner._sent))  # type: ignore[attr-defined]
        then(len(seen))
        return launched

    runner.launch = seeing  # type: ignore[method-assign]
    return seen


def test_rows_fail_that_read_what_an_earlier_plan_could_not_compute(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other rows of later plans have their answers, and what was not computed is in no cache afterwards."""
    caplog.set_level(logging.CRITICAL)
    shared = random_ids(Random(1), 8, BAD)
    prompts = [[*shared, BAD, 1], [3, 4], [*shared, 5, 6], [7, 8]]
    params = greedy(4, ignore_eos=True, bad_word_ids=((BAD,),))
    with rig_of(llama, plugins()) as rig:
        wanted = rig.tokens(prompts, params)
    refuse_bad(monkeypatch, "send")
    with rig_of(llama, plugins(), launch=launch_thread, page_size=4, **TWO_STAGES) as rig:
        seen = plans_of(rig)
        ids = [rig.add(prompt, params) for prompt in prompts]
        answers = rig.drain()
        assert [[len(each.plan.chunks) for each in sent] for sent in seen[:2]] == [[2], [2, 2]]
        errors = [answers[request_id, 0].last.error for request_id in ids]
        assert ["not this one" in str(error) for error in errors] == [True, False, True, False]
        assert [answers[ids[i], 0].token_ids for i in (1, 3)] == [wanted[1], wanted[3]]
        monkeypatch.undo()
        assert rig.tokens(prompts, params) == wanted


def test_plans_fail_beside_preempted_sequences(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows are computed again, although plans that were sent meanwhile have moved pages to host memory and back."""
    caplog.set_level(logging.CRITICAL)
    prompts = [random_ids(Random(i), 5 + 3 * i) for i in range(7)]
    settings = {"num_pages": 12, "max_model_len": 80, "preemption": "swap", "swap_space": 0.01}
    with rig_of(llama, plugins()) as rig:
        wanted = rig.tokens(prompts, greedy(40, ignore_eos=True))
    original, failed = StageFlow.send, set[int]()

    def fails(self: StageFlow, x: torch.Tensor, fwd: Any) -> None:
        if self._plan % 3 == 0 and len(fwd.contexts) > 1:
            failed.add(self._plan)
            raise ValueError("not these together")
        original(self, x, fwd)

    monkeypatch.setattr(StageFlow, "send", fails)
    with rig_of(llama, plugins(), launch=launch_thread, **TWO_STAGES, **settings) as rig:
        seen = plans_of(rig)
        assert rig.tokens(prompts, greedy(40, ignore_eos=True)) == wanted
    later = [sent[1].plan for sent in seen if len(sent) == 2 and sent[0].number in failed]
    assert any(plan.swaps_out for plan in later)
    assert any(plan.swaps_in for plan in later)


def test_as_many_plans_are_in_flight_as_there_are_stages(llama: Path) -> None:
    """They have other sequences, unless these still compute their prompts; so with answers that were aborted."""
    prompts = [random_ids(Random(i), 5 + 3 * i) for i in range(6)]
    with rig_of(llama, plugins()) as rig:
        wanted = rig.tokens(prompts, greedy(8, ignore_eos=True))
    with rig_of(llama, plugins(), launch=launch_thread, **TWO_STAGES) as rig:
        ids = [rig.add(prompt, greedy(8, ignore_eos=True)) for prompt in [*prompts, prompts[0]]]
        seen = plans_of(rig, lambda count: count == 8 and rig.engine.abort(ids[-1]))  # while plans are in flight
        answers = rig.drain()
        pages = rig.engine.stats().num_pages_used
    assert [answers[request_id, 0].token_ids for request_id in ids[:-1]] == wanted
    assert max(map(len, seen)) == 2
    pairs = [[each.plan for each in sent] for sent in seen if len(sent) == 2]
    sampling = [[{c.seq_id for c in plan.chunks if c.samples} for plan in plans] for plans in pairs]
    assert any(all(both) for both in sampling)
    assert all(both[0].isdisjoint(both[1]) for both in sampling)
    assert pages == 0


def test_each_rank_has_the_weights_of_its_stage(llama: Path) -> None:
    with rig_of(llama, plugins()) as rig:
        whole = rig.engine.loaded.weight_bytes
    with rig_of(llama, plugins(), launch=launch_thread, **TWO_STAGES) as rig:
        rig.tokens([random_ids(Random(1), 5)], greedy(1))
        shares = [rig.engine.loaded.weight_bytes, rig.engine._ranks._loaded[1].weight_bytes]
    assert sum(shares) == whole
    assert max(shares) <= 0.6 * whole
