"""Models with state beside pages: rejected drafts leave no trace in it, and right ones still save steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, related_prompts, rig_of
from every_drafter import Helped, num_kept, random_head, with_help
from family_checks import Family, plugins
from hybrid_cases import CASES
from hybrid_rig import KINDS, hybrid_folder, hybrid_registry
from mtp_models import QWEN, cut_layer, mtp_tensors
from speculation_rig import Outputs, ReplayDrafter, with_drafter

from quire.engine.memory.state_budget import MAX_KEPT, plan_slots
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import reference_model

KINDS_WITH_STATE = [kind for kind in KINDS if kind != "attention only"]
PROMPTS = related_prompts(10, seed=6)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True)
REAL = ("Mamba2ForCausalLM", "Qwen3NextForCausalLM", "JambaForCausalLM", "Lfm2ForCausalLM")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    {"num_pages": 10, "preemption": "recompute", "max_num_seqs": 12, "max_model_len": 100},
    {
        "num_pages": 10,
        "preemption": "swap",
        "swap_space": 0.01,
        "max_num_seqs": 12,
        "max_model_len": 100,
    },
    {"max_num_batched_tokens": 256, "state_checkpoint_interval": 2},
    {"enable_prefix_caching": False, "max_num_batched_tokens": 64},
    {"batch_invariant": True, "max_num_batched_tokens": 64},
]

WAYS = [
    pytest.param(kind, settings, spoiled, id=f"{kind}-{settings}-{spoiled}")
    for k, kind in enumerate(KINDS_WITH_STATE)
    for i, settings in enumerate(SETTINGS)
    for j, spoiled in enumerate((0.0, 0.3, 1.0))
    if (i + j + k) % 3 == 0
]
"""Every pair of a kind of model, settings, and a share of wrong drafts."""


def drafting(drafter: ReplayDrafter) -> dict[str, Any]:
    config = {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}
    return {"found": with_drafter(hybrid_registry(), drafter), "speculative_config": config}


def answers(rig: Rig) -> list[list[int]]:
    return rig.tokens(PROMPTS * 2, [greedy(24, ignore_eos=True)] * len(PROMPTS) + [SEEDED] * len(PROMPTS))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrids")


@pytest.fixture(scope="module", params=KINDS_WITH_STATE)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(root: Path, kind: str) -> list[list[int]]:
    with rig_of(hybrid_folder(root, kind), hybrid_registry(), load_format="dummy") as rig:
        return answers(rig)


def outputs_of(expected: list[list[int]]) -> Outputs:
    found: Outputs = {}
    for prompt, tokens in zip(PROMPTS * 2, expected, strict=True):
        found.setdefault(tuple(prompt), []).append(tokens)
    return found


@pytest.mark.parametrize(("kind", "settings", "spoiled"), WAYS, indirect=["kind"])
def test_drafts_change_no_answer(
    root: Path, kind: str, expected: list[list[int]], settings: dict[str, Any], spoiled: float
) -> None:
    drafter = ReplayDrafter(outputs_of(expected), spoiled)
    with rig_of(hybrid_folder(root, kind), load_format="dummy", **drafting(drafter), **settings) as rig:
        assert answers(rig) == expected
        assert drafter.num_drafted > 100
        rig.engine.step()
        stats = rig.engine.stats()
        assert stats.state is not None
        assert (stats.num_pages_used, stats.state.num_slots_used) == (0, 0)


def test_right_drafts_save_steps_and_wrong_ones_cost_none(root: Path, kind: str, expected: list[list[int]]) -> None:
    for spoiled, steps in ((0.0, 1 + 5), (1.0, 1 + 24)):  # the first step ends at the last page of the prompt
        drafter = ReplayDrafter({tuple(PROMPTS[0]): [expected[0]]}, spoiled, vocab=1)
        settings = {"max_num_batched_tokens": 64, "page_size": 4, "load_format": "dummy", **drafting(drafter)}
        with rig_of(hybrid_folder(root, kind), **settings) as rig:
            assert rig.tokens([PROMPTS[0]], greedy(24, ignore_eos=True)) == [expected[0]]
            assert rig.engine.stats().num_steps_total == steps


@pytest.mark.parametrize("case", [case for case in CASES if case.architecture in REAL], ids=str)
def test_states_of_real_blocks_go_back(case: Any, tmp_path: Path) -> None:
    folder, params = Family(replace(case, lora=()), tmp_path).folder, greedy(20, ignore_eos=True)
    with rig_of(folder, plugins(), max_model_len=80) as rig:
        expected = rig.tokens(PROMPTS, params)
    drafter = ReplayDrafter({tuple(p): [t] for p, t in zip(PROMPTS, expected, strict=True)}, 0.3)
    config = {"method": "replay", "num_speculative_tokens": 5, "adaptive": False}
    with rig_of(folder, with_drafter(plugins(), drafter), speculative_config=config, max_model_len=80) as rig:
        assert rig.tokens(PROMPTS, params) == expected
        assert drafter.num_drafted > 100


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "mtp"])
def test_states_go_back_beside_those_of_heads(tmp_path: Path, name: str) -> None:
    layers: dict[str, Any] = {"num_experts": 0, "layer_types": ["linear_attention", "full_attention", "full_attention"]}
    folder = cut_layer(
        reference_model(QWEN, 4, num_hidden_layers=3, **layers), tmp_path / "m", mtp_tensors(False, False)
    )
    with rig_of(folder, max_model_len=80) as rig:
        expected = answers(rig)
    helped = Helped(outputs_of(expected))
    config: dict[str, Any] = {"method": name, "num_speculative_tokens": 4, "adaptive": False}
    config |= {} if name == "mtp" else {"model": str(random_head(name, tmp_path / "head"))}
    pools = {"num_pages": 10, "max_num_seqs": 12, "max_model_len": 80, "preemption": "recompute"}
    with rig_of(folder, with_help(registry.load(None), name, helped), speculative_config=config, **pools) as rig:
        assert answers(rig) == expected
        assert min(helped.num_own, helped.num_right) > 50
        rig.engine.step()
        stats, speculation = rig.engine.stats(), rig.engine._speculation
        assert stats.state is not None
        assert (stats.num_pages_used, stats.state.num_slots_used) == (0, 0)
        assert speculation is not None
        assert speculation._drafter is not None
        assert num_kept(speculation._drafter.built) == 0


def test_a_configured_number_of_checkpoints_is_beside_the_kept_states() -> None:
    plain = ModelConfig(model="m", num_state_checkpoints=3, max_num_seqs=8)
    drafting = ModelConfig(model="m", num_state_checkpoints=3, max_num_seqs=8, speculative_config={"method": "ngram"})
    assert plan_slots(plain, 10, None, 0).total == 8 + 3
    assert plan_slots(drafting, 10, None, 0).total == 8 + 3 + 8
    assert plan_slots(plain, 10, 10_000, 0).total == 8 + 3
    assert plan_slots(drafting, 10, 10_000, 0).total == 8 + 3 + min(8, MAX_KEPT)
    tight = plan_slots(drafting, 10, 60, 0)
    assert (tight.num_seqs, tight.num_checkpoints) == (3, 3)
