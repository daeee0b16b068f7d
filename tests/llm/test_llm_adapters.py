"""Adapters in the library: `LoRARequest`, by path or by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from adapted_rig import PROMPTS
from engine_rig import Answer, greedy, make_rig
from random_adapters import Kit

from quire import LLM, AdapterSource, AsyncLLMEngine, LoRARequest
from quire.errors import BadRequest
from quire.text.tokenizer.tokenizer import Tokenizer


def test_the_library_loads_an_adapter_when_it_is_first_used(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    engine = make_rig(folder, kit.registry, max_loras=2).engine
    with LLM.from_engine(engine, Tokenizer.load(folder), kit.registry) as llm:
        one, two = LoRARequest("a", 1, str(adapters["a"])), LoRARequest("b", 2, str(adapters["b"]))
        params = greedy(8, ignore_eos=True)
        outputs = llm.generate([PROMPTS[0]] * 3, params, lora_request=[one, None, two], use_tqdm=False)
        for output, name in zip(outputs, ("a", "base", "b"), strict=True):
            assert output.outputs[0].token_ids == expected_answers[name, 0].token_ids
        llm.generate([PROMPTS[0]], params, lora_request=one, use_tqdm=False)
        assert [info.revision for info in engine.adapters.infos()] == [1, 2]
        moved = LoRARequest("a", 1, str(adapters["c"]))
        (output,) = llm.generate([PROMPTS[0]], params, lora_request=moved, use_tqdm=False)
        assert output.outputs[0].token_ids == expected_answers["c", 0].token_ids
        with pytest.raises(BadRequest, match="two paths for the name 'a'"):
            llm.generate([PROMPTS[0]] * 2, params, lora_request=[one, moved], use_tqdm=False)
        with pytest.raises(BadRequest, match="`lora_request` must be LoRARequest"):
            llm.generate([PROMPTS[0]], params, lora_request="a", use_tqdm=False)  # type: ignore[arg-type]


def test_tasks_with_adapters_are_answered_beside_each_other(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    engine = make_rig(folder, kit.registry, max_loras=2).engine
    served = AsyncLLMEngine(LLM.from_engine(engine, Tokenizer.load(folder), kit.registry).llm_engine)

    async def ask(name: str, number: int) -> list[int]:
        adapter = None if name == "base" else LoRARequest(name, 1, str(adapters[name]))
        prompt = PROMPTS[number]
        async for output in served.generate(prompt, greedy(8, ignore_eos=True), f"{name}{number}", adapter):
            tokens = output.outputs[0].token_ids
        return tokens

    async def ask_all() -> list[list[int]]:
        return await asyncio.gather(*(ask(*key) for key in asked))

    asked = [key for key in expected_answers if key[0] in ("base", "a", "b")]
    assert asyncio.run(ask_all()) == [expected_answers[key].token_ids for key in asked]
    assert {info.revision for info in engine.adapters.infos()} == {1, 2}
    served.shutdown()


def test_an_adapter_without_a_path_is_looked_for_by_plugins(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    asked = []

    def resolve(name: str, base_model: str, cache_dir: Path) -> AdapterSource | None:
        asked.append((name, base_model, cache_dir.name))
        return AdapterSource(adapters[name], "r1") if name in adapters else None

    found = replace(kit.registry, resolve_adapter=resolve)
    with LLM.from_engine(make_rig(folder, found).engine, Tokenizer.load(folder), found) as llm:
        (output,) = llm.generate(
            [PROMPTS[1]], greedy(8, ignore_eos=True), lora_request=LoRARequest("b"), use_tqdm=False
        )
        assert output.outputs[0].token_ids == expected_answers["b", 1].token_ids
        with pytest.raises(BadRequest, match="No path was given for the adapter `q`"):
            llm.generate([PROMPTS[1]], lora_request=LoRARequest("q"), use_tqdm=False)
    assert asked == [("b", str(folder), "adapters"), ("q", str(folder), "adapters")]
