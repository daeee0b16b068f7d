"""Pooling settings from the files of a model folder: modules of sentence-transformers, lengths, dimensions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, related_prompts, rig_of
from pooling_rig import close, edit, hidden_of, made, pooled, unit

from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.params.pooling import PoolingParams
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing.tiny import byte_tokenizer, tiny_model

# --- what the folder says ---------------------------------------------------------------------------


def sentence_model(folder: Path, mode: str, dense: bool, normalize: bool) -> Any:
    """A tiny model in the format of sentence-transformers, and the model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    tiny_model(folder / "inner", "Qwen3Model")
    byte_tokenizer(folder / "inner", chat_template=None)  # with one, texts would be taken for messages
    modules: list[Any] = [Transformer(str(folder / "inner")), Pooling(64, pooling_mode=mode)]
    if dense:
        torch.manual_seed(1)
        modules.append(Dense(64, 24, activation_function=torch.nn.Tanh()))
    if normalize:
        modules.append(Normalize())
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(folder / "model"))
    return model


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize(("dense", "normalize"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_folder_of_sentence_transformers_embeds_as_that_does(
    tmp_path: Path, mode: str, dense: bool, normalize: bool
) -> None:
    model = sentence_model(tmp_path, mode, dense, normalize)
    texts = ["a", "The quick brown fox jumps over the lazy dog.", "Wer reitet so spät durch Nacht und Wind?"]
    wanted = model.encode(texts, convert_to_tensor=True)
    with rig_of(tmp_path / "model") as rig:
        assert rig.engine.info.embedding_size == (24 if dense else 64)
        found = pooled(rig, [list(text.encode()) for text in texts])
    assert all(map(close, found, wanted))


ORDERS = ["ND", "NDN", "DND", "NDD", "DDN", "NNDNN"]


@pytest.mark.parametrize("order", ORDERS)
def test_modules_run_in_the_order_of_their_list(tmp_path: Path, order: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Normalize

    first = sentence_model(tmp_path, "mean", dense=False, normalize=False)
    torch.manual_seed(2)
    sizes = iter([(64, 24), (24, 40)])
    after = [Normalize() if kind == "N" else Dense(*next(sizes), activation_function=torch.nn.Tanh()) for kind in order]
    model = SentenceTransformer(modules=[*first, Dropout(0.1), *after], device="cpu").eval()
    model.save(str(tmp_path / "ordered"))
    texts = ["a", "The quick brown fox jumps over the lazy dog."]
    wanted = model.encode(texts, convert_to_tensor=True)
    with rig_of(tmp_path / "ordered") as rig:
        found = pooled(rig, [list(text.encode()) for text in texts])
    assert all(map(close, found, wanted))


@pytest.mark.parametrize("written", ["by the tokenizer", "by its own file", "nowhere"])
def test_texts_may_be_as_long_as_sentence_transformers_says(tmp_path: Path, written: str) -> None:
    model = sentence_model(tmp_path, "mean", dense=False, normalize=True)
    model.max_seq_length = 31 if written == "by the tokenizer" else 10**30
    model.save(str(tmp_path / "model"))
    if written == "by its own file":
        edit(tmp_path / "model" / "sentence_bert_config.json", max_seq_length=31)
    with rig_of(tmp_path / "model") as rig:
        assert rig.engine.info.max_model_len == (512 if written == "nowhere" else 31)


def test_texts_are_lowered_where_sentence_transformers_lowers_them(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    sentence_model(tmp_path, "mean", dense=False, normalize=False)
    folder = tmp_path / "model"
    assert Tokenizer.load(folder).encode("LOUD") == list(b"LOUD")
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    texts = ["LOUD", "Wer reitet SO SPÄT durch Nacht und Wind?"]
    wanted = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    tokenizer = Tokenizer.load(folder)
    with rig_of(folder) as rig:
        found = pooled(rig, [tokenizer.encode(text) for text in texts])
    assert tokenizer.encode("LOUD") == list(b"loud")
    assert all(map(close, found, wanted))


def test_modules_that_cannot_be_run_are_named_at_the_start(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "Qwen3Model")
    pooling = tmp_path / "1_Pooling"
    pooling.mkdir()

    def refused(modules: Any, config: Any = None, match: str = "") -> None:
        (folder / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
        (pooling / "config.json").write_text(json.dumps(config or {}))
        with pytest.raises(CheckpointError, match=match), rig_of(folder):
            pass

    usual = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    refused([*usual, {"type": "x.LSTM", "path": "2_LSTM"}], match="asks for 'LSTM'; supported are Transformer")
    refused(
        usual, {"pooling_mode_max_tokens": True}, match="pooling by pooling_mode_max_tokens; supported is one of mean"
    )
    refused(usual, {"pooling_mode": ["mean", "cls"]}, match="pooling by mean and cls")
    refused([{"type": "x.Pooling", "path": "../elsewhere"}], match="outside its folder")
    refused(
        [usual[0], {"type": "x.Normalize", "path": "2"}, usual[1]], match="lists Transformer, Normalize, Pooling; it"
    )
    refused([*usual, usual[1]], match="must list one Transformer, one Pooling and then")
    refused([usual[0], {"type": "x.Dense", "path": "1_Pooling"}], match="lists Transformer, Dense")
    refused("{", match="not valid JSON")
    refused({}, match="must hold a JSON list of objects")
    dense = [*usual, {"type": "x.Dense", "path": "1_Pooling"}]
    refused(dense, {}, match="must say `out_features`")
    refused(dense, {"out_features": 8, "activation_function": "os.system"}, match="activation 'system'")
    refused(dense, {"out_features": 8}, match="has no weights")
    refused(dense, {"out_features": 8, "use_residual": True}, match="`use_residual` True; only False is supported")
    refused(dense, {"out_features": 8, "module_input_name": "token_embeddings"}, match="`module_input_name`")


def test_settings_choose_task_pooling_and_dimensions(tmp_path: Path) -> None:
    folder, model = made(tmp_path, "LlamaForCausalLM")
    prompt = related_prompts()[0]
    states = hidden_of(model, prompt)
    for setting, wanted in (("cls", states[0]), ("mean", states.mean(0)), ("last", states[-1])):
        with rig_of(folder, pooling=setting, matryoshka=True) as rig:
            assert close(pooled(rig, [prompt])[0], unit(wanted))
            assert close(pooled(rig, [prompt], dimensions=10)[0], unit(wanted[:10]))
            assert close(pooled(rig, [prompt], use_activation=False)[0], wanted)
            with pytest.raises(BadRequest, match="must be from 1 to 64 for the model `tiny`, got 65"):
                rig.add(prompt, PoolingParams(dimensions=65))
    with (
        rig_of(folder, task="embed") as rig,
        pytest.raises(BadRequest, match=r"cannot do `generate`\. It can do: embed, tok"),
    ):
        rig.add(prompt, greedy())
    with rig_of(folder, task="generate") as rig, pytest.raises(BadRequest, match=r"`embed`\. It can do: gen"):
        rig.add(prompt, PoolingParams())
    with (
        pytest.raises(ConfigError, match="--task classify: this model does not support it; it supports generate"),
        rig_of(folder, task="classify"),
    ):
        pass


def test_a_model_says_which_dimensions_it_was_trained_for(tmp_path: Path) -> None:
    folder, model = made(tmp_path, "Qwen3Model")
    edit(folder / "config.json", matryoshka_dimensions=[16, 32])
    prompt = related_prompts()[0]
    with rig_of(folder) as rig:
        assert close(pooled(rig, [prompt], dimensions=16)[0], unit(hidden_of(model, prompt)[-1][:16]))
        with pytest.raises(BadRequest, match="must be one of 16, 32 for the model `tiny`, got 20"):
            rig.add(prompt, PoolingParams(dimensions=20))
