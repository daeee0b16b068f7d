"""Phi-3.5-vision against a reference made of transformers' halves, on a tiny random model in the published format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from llava_rig import our_logits, picture
from phi_vision_rig import CONFIG, ROOT, Model

from quire import LLM
from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.hooks import registry
from quire.records import Registry
from quire_kernels.select import reference
from quire_models import TowerCall
from quire_models.loading import checkpoint
from quire_models.modules.builder import ModuleBuilder
from quire_models.towers.tower import SupportsDummyInput
from quire_plugins.architectures import phi
from quire_plugins.vision import phi as phi_vision
from quire_plugins.vision.phi_inputs import crops_of
from quire_testing import check_input_mapper

SIZES = [(40, 30), (30, 90), (90, 30), (28, 28), (200, 1), (1, 200), (57, 113)]


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("phi") / "base")


@pytest.fixture
def rig(model: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(model.folder, found, dtype="float32", num_pages=100) as made:
        yield made


@pytest.mark.parametrize("size", SIZES)
def test_logits_are_those_of_the_reference(model: Model, found: Registry, rig: Rig, size: tuple[int, int]) -> None:
    shown = picture(1, *size)
    prompt = model.prompt(found, rig.engine.info, "a <|image_1|>\nwhat?", shown)
    torch.testing.assert_close(our_logits(rig.engine.loaded, prompt), model.logits(prompt, shown), atol=2e-4, rtol=0)


@pytest.mark.parametrize("max_tokens", [7, 600])
def test_answers_are_those_of_the_reference_however_the_prompt_is_cut(
    model: Model, found: Registry, max_tokens: int
) -> None:
    shown = [picture(seed, *size) for seed, size in enumerate(SIZES[:2])]
    with rig_of(model.folder, found, dtype="float32", max_num_batched_tokens=max_tokens, num_pages=100) as rig:
        both = model.prompt(found, rig.engine.info, "<|image_1|><|image_2|>?", *shown)
        text = model.prompt(found, rig.engine.info, "no picture")
        ids = [rig.add(prompt, greedy(16, ignore_eos=True)) for prompt in (both, text)]
        answers = rig.drain()
    assert answers[ids[0], 0].token_ids == model.greedy(both, *shown)
    assert answers[ids[1], 0].token_ids == model.greedy(text)


def test_pictures_go_where_their_numbers_are(model: Model, found: Registry, rig: Rig) -> None:
    first, second = picture(1, 40, 30), picture(2, 90, 30)
    turned = model.prompt(found, rig.engine.info, "<|image_2|>, <|image_1|>", first, second)
    plain = model.prompt(found, rig.engine.info, "<|image|>, <|image|>", second, first)
    assert [medium.digest for medium in turned.media] == [medium.digest for medium in plain.media]
    for text in ("<|image_2|>", "<|image_1|><|image_1|>", "<|image_0|><|image_1|>"):
        with pytest.raises(BadRequest, match="each needs its own, from 1 on"):
            model.prompt(found, rig.engine.info, text, first, *([second] if text.count("image") > 1 else []))


@pytest.mark.parametrize(
    ("size", "most", "lines", "columns"),
    [((1344, 1344), 16, 4, 4), ((1344, 672), 4, 1, 2), ((336, 336), 1, 1, 1), ((1000, 300), 16, 2, 6)],
)
def test_the_published_size_takes_the_published_number_of_tokens(
    size: tuple[int, int], most: int, lines: int, columns: int
) -> None:
    tower = phi_vision.CropsTower(
        SimpleNamespace(patches=SimpleNamespace(side=24)),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
    )
    assert crops_of(*size, most) == columns
    assert tower.rows(lines, columns) == (lines * columns + 1) * 144 + 1 + (lines + 1) * 12


def test_sizes_that_the_published_config_leaves_out_are_those_of_vit_large() -> None:
    published = {"name": "clip_vision_model", "image_dim_out": 1024, "num_img_tokens": 144}
    config = checkpoint._namespace({**CONFIG, "img_processor": published, "hidden_size": 3072})
    module = phi_vision.tower(config).build(3072, ModuleBuilder(reference(), torch.bfloat16, torch.device("meta")))
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assert shapes["vision.patches.positions"] == (577, 1024)
    assert shapes["vision.patches.project.weight"] == (1024, 588)
    assert len({name.split(".")[2] for name in shapes if name.startswith("vision.blocks")}) == 24
    assert shapes["projector.up.weight"] == (3072, 4096)
    assert shapes["projector.down.weight"] == (3072, 3072)
    assert shapes["newline"] == shapes["separator"] == (4096,)


def test_longrope_is_known_by_its_older_name(model: Model) -> None:
    decoder = phi.multimodal_text(checkpoint.read_config(model.folder))
    attention: Any = decoder.blocks[0].attn
    assert type(attention.rope.scaling).__name__ == "LongRope"
    assert attention.rope.scaling.original_len == 512
    assert attention.rope.scaling.factor == 2


def test_the_mapper_gives_as_many_ids_as_the_tower_gives_rows(model: Model, found: Registry) -> None:
    (record,) = (one for one in found.all("quire_input_mappers") if one.architecture == phi.VISION_ARCHITECTURE)
    architecture, config = (
        found.by_hook("quire_architectures")[phi.VISION_ARCHITECTURE],
        checkpoint.read_config(model.folder),
    )
    pictures = [picture(seed, *size) for seed, size in enumerate(SIZES)]
    for crops in (0, 1, 16):
        check_input_mapper(record, architecture, config, pictures, folder=model.folder, options={"crops": crops})


def test_the_example_that_memory_is_measured_with_is_what_the_tower_takes(rig: Rig) -> None:
    tower: Any = rig.engine.loaded.module.tower
    assert isinstance(tower, SupportsDummyInput)
    item, num_rows = tower.dummy_input()
    (rows,) = tower([item], TowerCall("cpu"))
    assert rows.shape == (num_rows, 64)


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"embd_layer": {**CONFIG["embd_layer"], "hd_transform_order": "x"}}, "hd_transform_order"),
        (
            "config.json",
            {"embd_layer": {**CONFIG["embd_layer"], "use_hd_transform": False}},
            "use_hd_transform` must be",
        ),
        ("preprocessor_config.json", {"num_crops": 10**6}, "`num_crops` must be from 1 to 16, got 1000000"),
        ("preprocessor_config.json", {"image_mean": [0.5]}, "`image_mean` must be three numbers"),
    ],
)
def test_a_folder_of_another_form_is_refused(
    model: Model, found: Registry, tmp_path: Path, file: str, changes: dict[str, Any], said: str
) -> None:
    for one in model.folder.iterdir():
        (tmp_path / one.name).write_bytes(one.read_bytes())
    path = tmp_path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=said), rig_of(tmp_path, found) as rig:
        model.prompt(found, rig.engine.info, "<|image_1|>", picture(1))


def test_a_number_of_crops_that_cannot_be_stops_the_start(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"--phi\.crops must be from 0 to 16; got 17"):
        LLM(str(model.folder), plugins=["phi"], num_pages=16, plugin_options={"phi": {"crops": 17}})


# --- from outside ------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
    "{{ '<|assistant|>\\n' }}"
)


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}])
def test_chats_with_pictures_are_answered_as_prompts_are(model: Model, settings: dict[str, str]) -> None:
    first, second = picture(1, 40, 30), picture(2, 30, 90)
    parts = [{"type": "image_pil", "image_pil": one} for one in (first, second)]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "Both?"}]}]
    prompt = "<|user|>\n<|image_1|>\n<|image_2|>\nBoth?<|end|>\n<|assistant|>\n"
    params = greedy(8, ignore_eos=True)
    options = {"dtype": "float32", "num_pages": 64, "chat_template": TEMPLATE, **settings}
    with LLM(str(model.folder), plugins=["phi"], trust_remote_code=True, **options) as llm:
        value = {"prompt": prompt, "multi_modal_data": {"image": [first, second]}}
        (chatted,), (asked,) = llm.chat(messages, params, use_tqdm=False), llm.generate(value, params, use_tqdm=False)
    assert chatted.prompt_token_ids == asked.prompt_token_ids
    assert chatted.outputs[0].token_ids == asked.outputs[0].token_ids


# --- adapters ----------------------------------------------------------------------------------------


def test_an_adapter_of_every_part_gives_the_answers_of_the_merged_model(model: Model, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    found = registry.load(None, enable_lora=True)
    tensors, generator = load_file(model.folder / "model.safetensors"), torch.Generator().manual_seed(3)
    parts = [
        f"{ROOT}.img_processor.vision_model.encoder.layers.0.self_attn.q_proj",
        f"{ROOT}.img_processor.vision_model.encoder.layers.1.mlp.fc1",
        f"{ROOT}.img_projection.0",
        f"{ROOT}.img_projection.2",
        "model.layers.0.self_attn.qkv_proj",
        "model.layers.1.mlp.down_proj",
    ]
    adapter: dict[str, torch.Tensor] = {}
    for part in parts:
        outputs, inputs = tensors[f"{part}.weight"].shape
        a, b = (torch.randn(shape, generator=generator) / 4 for shape in ((2, inputs), (outputs, 2)))
        adapter |= {f"base_model.model.{part}.lora_A.weight": a, f"base_model.model.{part}.lora_B.weight": b}
        tensors[f"{part}.weight"] = tensors[f"{part}.weight"] + b @ a
    made, merged = tmp_path / "adapter", tmp_path / "merged"
    for folder in (made, merged):
        folder.mkdir()
    names = sorted({part.rsplit(".", 1)[1] if not part[-1].isdigit() else part for part in parts})
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": names}
    (made / "adapter_config.json").write_text(json.dumps(settings))
    save_file(adapter, made / "adapter_model.safetensors")
    for one in model.folder.iterdir():
        (merged / one.name).write_bytes(one.read_bytes())
    save_file(tensors, merged / "model.safetensors")
    from llava_adapted import uses

    answers = []
    for folder, adapters in ((model.folder, ("tuned",)), (merged, ()), (model.folder, ())):
        with rig_of(folder, found, dtype="float32", num_pages=50) as rig:
            if adapters:
                rig.engine.load_adapter("tuned", made)
            prompt = model.prompt(found, rig.engine.info, "a <|image_1|>?", picture(1))
            request_id = rig.add(prompt, greedy(12, ignore_eos=True), adapters=uses(*adapters))
            answers.append(rig.drain()[request_id, 0].token_ids)
    assert answers[0] == answers[1] != answers[2]
