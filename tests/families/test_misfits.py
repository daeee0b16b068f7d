"""A checkpoint that does not fit its config is refused before its weights have memory: the error names the tensor."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import dense_cases
import moe_cases
import pytest
import torch
from family_case import FamilyCase
from family_checks import plugins
from safetensors.torch import load_file, save_file

from quire.engine.loading.load import load_model
from quire.errors import CheckpointError
from quire.records import Architecture
from quire.settings.model_config import ModelConfig
from quire_models.loading import config_fields, weight_names, weights
from quire_models.loading.weight_names import WeightsMapper
from quire_testing import check_architecture
from quire_testing.tiny import reference_model, save

CASES = [*dense_cases.CASES, *moe_cases.CASES]


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading ends at the check, which is of a model on the meta device."""
    monkeypatch.setattr(weights, "load", lambda *_: pytest.fail("weights were loaded"))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(ModelConfig(model=str(folder), device="cpu", dtype="float32", max_model_len=64), plugins())
    return caught.value.message


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_missing_an_extra_and_a_misshapen_tensor_are_named(case: FamilyCase, tmp_path: Path) -> None:
    save(reference_model(case.architecture, case.seed, case.attention, **case.config), tmp_path)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    matrices = [name for name, tensor in whole.items() if tensor.dim() == 2 and ".0." in name]
    last = sorted(matrices)[-1]
    changed: dict[str, Any] = {name: tensor for name, tensor in whole.items() if name != last}
    save_file({**changed, f"{last}_spare": torch.ones(2)}, file, {"format": "pt"})
    message = refused(tmp_path)
    assert f"'{last}_spare'" in message
    lacking = re.search(r"lacks (a tensor for )?'([^']+)'", message)
    assert lacking, message
    assert lacking[1] or last.endswith(lacking[2]), message  # some tables fit names with and without a prefix
    save_file({**whole, last: torch.ones(3, 3)}, file, {"format": "pt"})
    assert f"Tensor '{last}' has shape [3, 3]; by config.json it should be" in refused(tmp_path)


def test_a_config_whose_sizes_disagree_is_refused_with_the_fields(tmp_path: Path) -> None:
    save(reference_model("LlamaForCausalLM"), tmp_path / "model")
    for number, (changes, words) in enumerate(
        (
            ({"num_key_value_heads": 3}, r"num_attention_heads (4) is not a multiple of num_key_value_heads (3)"),
            ({"head_dim": None, "hidden_size": 66}, "hidden_size (66) is not a multiple of num_attention_heads (4)"),
            ({"num_hidden_layers": 0}, "`num_hidden_layers` must be an integer from 1 to"),
            ({"intermediate_size": 112}, "has shape [96, 64]; by config.json it should be [112, 64]"),
            ({"num_hidden_layers": 3}, "The checkpoint lacks 'model.layers.2."),
            ({"num_hidden_layers": 1}, "a tensor 'model.layers.1."),
        )
    ):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "model", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        assert words in refused(folder)


def test_layers_for_multi_token_prediction_are_left_out_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    llama = plugins().by_hook("quire_architectures")["LlamaForCausalLM"]

    def names(c: Any) -> WeightsMapper:
        return weight_names.LLAMA | WeightsMapper(ignored=config_fields.prediction_layers(c))

    def reference(folder: Path) -> Any:
        model = reference_model("LlamaForCausalLM")
        save(model, folder)
        extra = {f"model.layers.{layer}.eh_proj.weight": torch.ones(2, 2) for layer in (2, 3)}
        state = load_file(folder / "model.safetensors")
        save_file({**state, **extra}, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 2}))
        return lambda ids: model(ids, use_cache=False).logits[0]

    check_architecture(Architecture("LlamaForCausalLM", llama.decoder, names), reference=reference)
    with pytest.raises(CheckpointError, match=r"a tensor 'model\.layers\.2\.eh_proj\.weight'"):
        check_architecture(llama, reference=reference)
