"""Encoders, and encoder-decoders with cross-attention, on several ranks: what one process computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from divided_model import groups, load, on_ranks
from engine_rig import Rig, greedy
from family_checks import plugins
from rank_rig import on_one_and_several
from text_pair_model import START, TEXTS, TextPairModel
from tiny_encoders import CASES as ENCODERS, prompts
from torch import Tensor
from whisper_rig import CASES as SPEECH, Model as WhisperModel, answers_of, asked_of

from quire.engine.loading.load import LoadedModel
from quire_models.sharding.model import ModelShard
from quire_models.sharding.rank import Rank
from quire_models.testing import ModelDriver
from quire_testing.tiny import byte_tokenizer, reference_model, save

TOLERANCE = 5e-5

UNEVEN = "bert with other sizes"
"""Three heads, of which one rank of two has two."""


def hidden(loaded: LoadedModel, seqs: list[list[int]]) -> list[Tensor]:
    with torch.inference_mode():
        return ModelDriver(loaded.module, loaded.decoder, seqs).hidden(range(len(seqs)))


@pytest.mark.parametrize("name", [name for name in ENCODERS if not name.endswith(("tags", "classes"))])
def test_hidden_states_of_encoders_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    case = ENCODERS[name]
    save(reference_model(case.architecture, **case.config), tmp_path)
    byte_tokenizer(tmp_path)
    seqs = prompts((1, 33, 17))
    whole = load(tmp_path)
    wanted = hidden(whole, seqs)
    size = 2 if name == UNEVEN or list(ENCODERS).index(name) % 2 else 3
    members = groups(size)

    def work(rank: int) -> tuple[list[Tensor], int]:
        try:
            loaded = load(tmp_path, ModelShard(Rank(rank, size), members[rank]))
            return hidden(loaded, seqs), loaded.weight_bytes
        except BaseException:
            members[rank].fail()
            raise

    found = on_ranks(work, size)
    for states, num_bytes in found:  # all ranks have them, for pooling
        assert all(
            (mine - theirs).abs().max() < TOLERANCE * theirs.abs().max()
            for mine, theirs in zip(states, wanted, strict=True)
        )
        assert num_bytes < whole.weight_bytes


BART = {
    "vocab_size": 264,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 150,
    "decoder_start_token_id": START,
}
T5 = {
    "d_ff": 96,
    "num_heads": 4,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 40,
    "n_positions": 150,
    "decoder_start_token_id": START,
}
TEXT_PAIRS: dict[str, tuple[dict[str, Any], int]] = {
    "BartForConditionalGeneration": (BART, 3),
    "MBartForConditionalGeneration": ({**BART, "scale_embedding": True}, 2),
    "T5ForConditionalGeneration": (T5, 3),
    "MT5ForConditionalGeneration": ({**T5, "feed_forward_proj": "gated-gelu"}, 2),
    "UMT5ForConditionalGeneration": (T5, 2),
}
"""Configs, and numbers of ranks: three have two, one and one of four heads."""


@pytest.mark.parametrize("architecture", TEXT_PAIRS)
def test_encoder_decoders_of_text_answer_as_one_process(architecture: str, tmp_path: Path) -> None:
    config, size = TEXT_PAIRS[architecture]
    model = TextPairModel(tmp_path, architecture, r".*\.(q_proj|q)", **config)

    def answers(rig: Rig) -> list[list[int]]:
        asked = [model.prompt(plugins(), rig.engine.info, text) for text in TEXTS]
        ids = [rig.add(prompt, greedy(16, ignore_eos=True)) for prompt in asked]
        found = rig.drain()
        return [found[request_id, 0].token_ids for request_id in ids]

    one, several = on_one_and_several(tmp_path, plugins(), answers, {"tensor_parallel_size": size}, num_pages=60)
    assert several == one
    assert one[0] == model.greedy(TEXTS[0], count=16)


@pytest.mark.parametrize(("name", "size"), [("tied", 3), ("with a head of its own", 2)])
def test_whisper_answers_as_one_process(name: str, size: int, tmp_path: Path) -> None:
    model = WhisperModel(tmp_path, **SPEECH[name])
    asked = asked_of(model, plugins())
    _, several = on_one_and_several(
        tmp_path, plugins(), lambda rig: answers_of(rig, asked), {"tensor_parallel_size": size}, num_pages=100
    )
    assert several == [tokens for _, tokens in asked]
