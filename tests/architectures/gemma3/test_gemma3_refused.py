"""Gemma 3 configs, processors and tokenizers that do not fit are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_rig import greedy, rig_of
from gemma3_rig import BEGIN, SOFT, STOP, TOKENS, Model
from llava_rig import picture

from quire import LLM
from quire.errors import CheckpointError
from quire.records import Registry
from quire.types import Prompt


def changed(narrow: Model, folder: Path, name: str, **changes: Any) -> Path:
    shutil.copytree(narrow.folder, folder, dirs_exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mm_tokens_per_image": 9},
            "`mm_tokens_per_image` is 9, but the image encoder has 8 × 8 patches, which become 16 tokens",
        ),
        ({"vision_config": {"model_type": "dinov2"}}, "image encoder is 'dinov2'; what can be built is clip"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(
    narrow: Model, found: Registry, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said), rig_of(changed(narrow, tmp_path, "config.json", **changes), found):
        pass


def test_a_processor_or_tokenizer_that_does_not_fit_the_model_is_refused(
    narrow: Model, found: Registry, tmp_path: Path
) -> None:
    other = changed(narrow, tmp_path / "a", "preprocessor_config.json", size={"height": 28, "width": 28})
    with rig_of(other, found) as rig, pytest.raises(CheckpointError, match="28 × 28 pixels; the model reads 56 × 56"):
        narrow.prompt(found, rig.engine.info, "<start_of_image>", picture(1))
    other = changed(narrow, tmp_path / "b", "config.json", image_token_index=265)
    with rig_of(other, found) as rig, pytest.raises(CheckpointError, match=r"must be the token 265, .* makes \[261\]"):
        narrow.prompt(found, rig.engine.info, "<start_of_image>", picture(1))


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}])
def test_the_library_answers(narrow: Model, settings: dict[str, str]) -> None:
    prompts = [{"prompt": "a <start_of_image>!", "multi_modal_data": {"image": picture(seed)}} for seed in (1, 2)]
    with LLM(str(narrow.folder), plugins=["gemma"], num_pages=64, **{"dtype": "float32", **settings}) as llm:
        outputs = llm.generate([*prompts, "text"], greedy(8, ignore_eos=True), use_tqdm=False)
    ids = outputs[0].prompt_token_ids
    assert ids == [*b"a ", 256, BEGIN, *[SOFT] * TOKENS, STOP, 256, *b"!"]
    assert outputs[0].outputs[0].token_ids != outputs[1].outputs[0].token_ids
    if not settings:
        made = narrow.greedy(Prompt(token_ids=tuple(ids)), picture(1), max_new_tokens=8)
        assert outputs[0].outputs[0].token_ids == made
