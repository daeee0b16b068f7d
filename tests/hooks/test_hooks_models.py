"""Hooks that bring models: architectures, inputs, speech, number formats, ops, demo models."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import qwen_audio_rig
import torch
from hook_rig import ROOT, SAME, engine, generate
from plugin_site import PluginSite
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from quire import LLM
from quire.engine.architectures.choice import choose_architecture
from quire.errors import BadRequest, UnknownArchitecture
from quire.hooks.registry import load
from quire.records import ArchitectureFallback, ArchitectureQuery, Context, OpQuery, Segment, SpeechTask
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer, check_architecture, check_input_mapper, check_op, tiny_llama


def test_hook_architectures_bring_what_check_architecture_accepts(site: PluginSite) -> None:
    site.link(ROOT / "examples" / "starcoder_plugin")
    check_architecture("Starcoder2ForCausalLM", plugin="starcoder2")


def test_hook_architecture_fallbacks_are_asked_for_what_no_plugin_has(tmp_path: Path) -> None:
    registry = load()
    query = ArchitectureQuery(("MysteryForCausalLM",), None, tmp_path, trust_remote_code=False)
    llama = registry.by_hook("quire_architectures")["LlamaForCausalLM"]
    mine = ArchitectureFallback("mine", lambda asked: replace(llama, name=asked.names[0]))
    only = replace(registry, records={**registry.records, "quire_architecture_fallbacks": {"mine": mine}})
    only = replace(only, origin={**registry.origin, ("quire_architecture_fallbacks", "mine"): "plugin-mine"})
    chosen = choose_architecture("auto", query, only)
    assert (chosen.architecture.name, chosen.plugin, chosen.is_fallback) == ("MysteryForCausalLM", "plugin-mine", True)
    with pytest.raises(UnknownArchitecture, match="No loaded plugin can build MysteryForCausalLM"):
        choose_architecture("quire", query, only)


def test_hook_input_mappers_bring_what_check_mapper_accepts(tour: PluginSite) -> None:
    registry = load(["llama", "points"])
    (record,) = registry.all("quire_input_mappers")
    architecture = registry.by_hook("quire_architectures")[record.architecture]
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, vocab_size=300, point_size=3, point_token_id=299)
    clouds = [[[0.0, 1.0, 2.0]], torch.randn(40, 3).tolist()]
    check_input_mapper(record, architecture, config, clouds, options=registry.options["points"])
    mapper = record.build(Context(options={"most": 4}, config=config.to_dict()))
    for wrong in ([], [[1.0, 2.0]], [[0.0] * 3] * 5, "points", {"x": 1}):
        with pytest.raises(BadRequest, match="Points must be a matrix of"):
            mapper.map(wrong)


def test_hook_input_mappers_and_their_tower_answer_prompts_with_media(tour: PluginSite, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "points", architectures=["PointsLlamaForCausalLM"], point_size=3, point_token_id=262)
    tensors = load_file(folder / "model.safetensors")
    for name, inputs in (("up", 3), ("down", 64)):
        tensors[f"point_embed.{name}.weight"] = torch.randn(64, inputs)
        tensors[f"point_embed.{name}.bias"] = torch.randn(64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["PointsLlamaForCausalLM"]}))
    with LLM(str(folder), plugins=["llama", "points"], dtype="float32", num_pages=64) as llm:
        answers = [
            llm.generate(
                {"prompt": "A <points>", "multi_modal_data": {"points": torch.tensor(cloud)}}, SAME, use_tqdm=False
            )[0]
            for cloud in ([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [[0.0, 5.0, 1.0], [1.0, 0.0, 0.0]])
        ]
        parts = [{"type": "text", "text": "A "}, {"type": "points", "points": [[0, 0, 1], [1, 0, 0]]}]
        (chatted,) = llm.chat([{"role": "user", "content": parts}], SAME, use_tqdm=False)
    assert chatted.prompt_token_ids.count(262) == 2
    assert answers[0].prompt_token_ids == answers[1].prompt_token_ids == [*b"A ", 262, 262]
    assert answers[0].outputs[0].token_ids != answers[1].outputs[0].token_ids


def test_hook_transcribers_say_how_a_model_is_asked_for_what_was_said(tour: PluginSite, tmp_path: Path) -> None:
    registry = load(["ask-speech"])
    (record,) = registry.all("quire_transcribers")
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    asks = record.build(Context(options={"sound": "<sound>", "window_s": 30.0}, tokenizer=tokenizer))
    task = SpeechTask(language="fr", translate=True, to_language="de", previous="Bonjour.")
    asked = tokenizer.decode(asks.prompt(task), skip_special_tokens=False)
    assert "<sound>\nTranslate what is said to German" in asked
    assert "It is French. Before it was said: Bonjour." in asked
    with pytest.raises(BadRequest, match="does not know when"):
        asks.prompt(SpeechTask(timestamps=True))
    assert asks.segments([72, 105], task) == [Segment(begin=0, end=2, text_ids=(72, 105))]


def test_hook_transcribers_let_a_chat_model_that_hears_write_down_speech(tour: PluginSite, tmp_path: Path) -> None:
    folder, heard = qwen_audio_rig.Model(tmp_path).folder, qwen_audio_rig.sound(1, 0.6)
    options = {"ask-speech": {"window_s": 1.0}}
    question = "Audio 1: <|audio_bos|><|AUDIO|><|audio_eos|>\nWrite down what is said, and nothing else. It is German."
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    plugins = ["qwen-audio", "ask-speech"]
    with LLM(str(folder), plugins=plugins, plugin_options=options, dtype="float32", num_pages=64) as llm:
        (said,) = llm.transcribe(heard, language="de", sampling_params=SAME, use_tqdm=False)
        prompt = {"prompt": text, "multi_modal_data": {"audio": heard}}
        (answer,) = llm.generate(prompt, SAME, use_tqdm=False)
    assert said.text == answer.outputs[0].text.strip()
    assert said.text


def test_hook_quantizations_bind_the_matrices_of_the_blocks_and_the_head(model: Path) -> None:
    registry = load(["llama"])
    made = engine(model, registry, quantization="int8")
    generate(made, max_tokens=2)
    block, head = made.loaded.module.blocks[0], made.loaded.module.head
    for projection in (block.attn.qkv, block.attn.o, block.mlp.gate_up, block.mlp.down, head):
        whole = projection.multiply.unpacked()
        steps = whole / whole.abs().amax(-1, keepdim=True) * 127
        torch.testing.assert_close(steps, steps.round(), atol=1e-3, rtol=0)
    assert registry.plugin_of("quire_quantizations", "int8") == "int8"


def test_hook_ops_replace_the_built_in_implementation_where_they_are_supported(tour: PluginSite, model: Path) -> None:
    registry = load(["llama", "inplace-act"])
    record = registry.by_hook("quire_ops")["inplace-act"]
    check_op(record)
    assert record.supports(OpQuery("cpu", "bfloat16")) == "is for float32, not bfloat16"
    made = engine(model, registry)
    (choice,) = [choice for choice in made.loaded.ops.report if choice.op == "act"]
    assert (choice.name, choice.plugin) == ("inplace-act", "inplace-act")
    assert generate(made) == generate(engine(model, load(["llama"])))


def test_hook_demo_models_are_folders_that_can_be_served() -> None:
    for demo in load().all("quire_demo_models"):
        assert (demo.folder() / "config.json").is_file(), demo.name
        assert demo.summary
