"""LoRA adapters that need the model's own weights to be read, on several ranks, against peft."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_rig import greedy, random_ids, rig_of
from family_checks import plugins
from lora_rig import Base
from rank_rig import DIVIDED_GROUPS, TWO_RANKS, TWO_STAGES
from thread_ranks import launch_thread

from quire.errors import BadRequest
from quire.types import AdapterRef, WeightedAdapter

LLAMA, QWEN = "LlamaForCausalLM", "Qwen2ForCausalLM"
TIED = {"tie_word_embeddings": True}
DORA = {"use_dora": True, "target_modules": "all-linear"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "DoRA": (LLAMA, DORA, DIVIDED_GROUPS),
    "DoRA on fused matrices": ("Phi3ForCausalLM", DORA, DIVIDED_GROUPS),
    "DoRA on a table and a head": (LLAMA, {"use_dora": True, "target_modules": ["embed_tokens", "lm_head"]}, TIED),
    "DoRA and all biases": (QWEN, {"use_dora": True, "target_modules": ["q_proj", "o_proj"], "bias": "all"}, {}),
    "biases that one rank adds": ("OPTForCausalLM", {"target_modules": "all-linear", "bias": "lora_only"}, {}),
    "tables saved": (LLAMA, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}, {}),
}
WAYS = {
    "DoRA": {**TWO_RANKS, **TWO_STAGES},
    "DoRA on a table and a head": TWO_STAGES,
    "tables saved": TWO_STAGES,
    "DoRA and all biases": TWO_STAGES,
}
"""How the model is divided, if not among two ranks."""

PROMPTS = [random_ids(Random(i), 12) for i in range(3)]


def use(name: str) -> dict[str, Any]:
    return {"adapters": (WeightedAdapter(AdapterRef(name=name)),)}


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_peft(tmp_path: Path, name: str) -> None:
    architecture, config, model = CASES[name]
    base = Base(tmp_path / "base", architecture, **model)
    folder = base.adapter("x", like=0.7, r=4, lora_alpha=4, **config)
    with rig_of(base.folder, plugins(), launch=launch_thread, **WAYS.get(name, TWO_RANKS)) as rig:
        rig.engine.load_adapter("x", folder)
        ids = [rig.add(prompt, greedy(8, ignore_eos=True), **use("x")) for prompt in PROMPTS]
        plain = rig.add(PROMPTS[0], greedy(8, ignore_eos=True))
        found = rig.drain()
    wanted = [base.greedy(folder, prompt, 8) for prompt in PROMPTS]
    assert [found[request_id, 0].token_ids for request_id in ids] == wanted
    assert found[plain, 0].token_ids == base.greedy(None, PROMPTS[0], 8) != wanted[0]


def test_what_one_rank_cannot_read_is_refused_and_the_next_adapter_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank waits for what the other, which has given up, would have added to a sum."""
    from quire_adapters import divided

    base = Base(tmp_path / "base", LLAMA)
    folder = base.adapter("x", r=4, **DORA)
    row_norms = divided.DividedValues.row_norms

    def fails(self: Any, target: Any, *rest: Any) -> Any:
        if target.path == "blocks.0.mlp.down" and self._shard.rank.index == 1:
            raise BadRequest("rank 1 has no such file", "lora_path")
        return row_norms(self, target, *rest)

    with rig_of(base.folder, plugins(), launch=launch_thread, tensor_parallel_size=2) as rig:
        with monkeypatch.context() as patch, pytest.raises(BadRequest, match="rank 1 has no such file"):
            patch.setattr(divided.DividedValues, "row_norms", fails)
            rig.engine.load_adapter("x", folder)
        rig.engine.load_adapter("x", folder)
        request_id = rig.add(PROMPTS[0], greedy(8, ignore_eos=True), **use("x"))
        assert rig.drain()[request_id, 0].token_ids == base.greedy(folder, PROMPTS[0], 8)
