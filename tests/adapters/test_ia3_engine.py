"""IA³ adapters in an engine, beside LoRA and the base model: greedy tokens are those of peft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_rig import greedy, related_prompts, rig_of
from ia3_rig import CASES, World, write_lora

from quire.hooks import registry
from quire.records import Registry
from quire.types import AdapterRef, WeightedAdapter

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("llama"), CASES["llama"])


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


@pytest.mark.parametrize("settings", [{}, {"batch_invariant": True}, {"max_loras": 1}])
@pytest.mark.parametrize("name", ["llama", "opt"])
def test_greedy_tokens_are_those_of_peft(name: str, settings: dict[str, Any], found: Registry, tmp_path: Path) -> None:
    world = World(tmp_path, CASES[name])
    prompts = related_prompts(2, seed=5)
    with rig_of(world.folder, found, **settings) as rig:
        for key, path in world.paths.items():
            rig.engine.load_adapter(key, path)
        asked = {}
        for i, prompt in enumerate(prompts):
            for user in (None, "a", "b", "c"):
                uses = () if user is None else (WeightedAdapter(AdapterRef(name=user)),)
                asked[user, i] = rig.add(prompt, greedy(6, ignore_eos=True), adapters=uses)
        answers = rig.drain()
    for (user, i), request_id in asked.items():
        assert answers[request_id, 0].token_ids == world.greedy(user, prompts[i], 6), (user, i)


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_a_row_depends_on_no_other_in_batch_invariant_steps(name: str, found: Registry, tmp_path: Path) -> None:
    world = World(tmp_path, CASES[name])
    prompts = related_prompts(4, seed=7)
    params = greedy(6, ignore_eos=True, logprobs=0)
    users = ("a", "b", "c", None)

    def logprobs(batches: Sequence[Sequence[int]]) -> dict[int, list[float]]:
        given = {}
        with rig_of(world.folder, found, batch_invariant=True, enable_prefix_caching=False) as rig:
            for key, path in world.paths.items():
                rig.engine.load_adapter(key, path)
            for batch in batches:
                uses = [() if users[i] is None else (WeightedAdapter(AdapterRef(name=str(users[i]))),) for i in batch]
                ids = [rig.add(prompts[i], params, adapters=use) for i, use in zip(batch, uses, strict=True)]
                answers = rig.drain()
                given |= {
                    i: [one.logprob for one in answers[request_id, 0].logprobs]
                    for i, request_id in zip(batch, ids, strict=True)
                }
        return given

    assert logprobs([range(4)]) == logprobs([[3], [2], [1], [0]])


def test_both_kinds_are_at_work_in_one_batch(world: World, found: Registry, tmp_path: Path) -> None:
    prompts = related_prompts(3, seed=6)
    world.models["lora"] = write_lora(tmp_path / "lora")
    users: Sequence[str | None] = ("a", "lora", None)
    params = greedy(6, ignore_eos=True, logprobs=0)

    def ask(rig: Any, user: str | None, prompt: Sequence[int]) -> str:
        uses = () if user is None else (WeightedAdapter(AdapterRef(name=user)),)
        return str(rig.add(prompt, params, adapters=uses))

    def logprobs(answer: Any) -> list[float]:
        return [one.logprob for one in answer.logprobs]

    settings = {"enable_prefix_caching": False}  # so that both make the same steps
    with rig_of(world.folder, found, **settings) as rig, rig_of(world.folder, **settings) as plain:
        for name, path in {"a": world.paths["a"], "lora": tmp_path / "lora"}.items():
            rig.engine.load_adapter(name, path)
        ids = [ask(rig, user, prompt) for prompt in prompts for user in users]
        base = [ask(plain, None, prompt) for prompt in prompts for _ in users]
        answers, alone = rig.drain(), plain.drain()
    for i, (request_id, base_id) in enumerate(zip(ids, base, strict=True)):
        user, prompt = users[i % 3], prompts[i // 3]
        assert answers[request_id, 0].token_ids == world.greedy(user, prompt, 6), user
        if user is None:
            assert logprobs(answers[request_id, 0]) == logprobs(alone[base_id, 0])
