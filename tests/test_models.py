"""Every bundled architecture against transformers: tiny random weights, float32, logits of every position.

Whole prompts, chunks of awkward sizes, mixed batches, pages all over the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from quire.records import Architecture, OpQuery
from quire_kernels import select
from quire_models.blocks import DecoderModel
from quire_models.mapping import load_state_dict_into
from quire_models.parts import Decoder
from quire_models.testing import Piece, build, run_tokens

TOLERANCE = 1e-4
VOCAB = 97
FAMILIES = ("gemma", "gpt2", "granite", "llama", "mistral", "olmo", "opt", "phi", "qwen")


@dataclass(frozen=True)
class Case:
    """An architecture at a tiny size; `config` are fields that differ from COMMON."""

    architecture: str
    config_class: str
    config: Mapping[str, Any] = field(default_factory=dict)
    own_sizes: bool = False


COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}
MOE = {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 48,
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
SHORT = {"short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0], "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16, **SHORT}
ORIGINAL = {"rope_theta": 1e4, "original_max_position_embeddings": 16}


def llama(**config: Any) -> Case:
    return Case("LlamaForCausalLM", "LlamaConfig", config)


def scaled(kind: str, **parameters: Any) -> Case:
    return llama(rope_parameters={"rope_type": kind, "rope_theta": 1e4, **parameters})


CASES = {
    "llama": llama(),
    "llama tied, with biases": llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama linear": scaled("linear", factor=2.0),
    "llama llama3": scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    "llama yarn": scaled("yarn", factor=4.0, **ORIGINAL),
    "llama yarn with mscale": scaled("yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.0, truncate=False, **ORIGINAL),
    "mistral": Case("MistralForCausalLM", "MistralConfig", {"sliding_window": 5}),
    "mixtral": Case("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4}),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2 with windows": Case(
        "Qwen2ForCausalLM", "Qwen2Config", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    ),
    "qwen3": Case("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}),
    "qwen3 moe": Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**MOE, "norm_topk_prob": True}),
    "qwen3 moe, some layers dense": Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**MOE, "mlp_only_layers": [0]}),
    "phi3": Case("Phi3ForCausalLM", "Phi3Config", {"sliding_window": 6}),
    "phi3 partly rotary": Case(
        "Phi3ForCausalLM",
        "Phi3Config",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "gemma2": Case("Gemma2ForCausalLM", "Gemma2Config", GEMMA),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**GEMMA, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "olmo2": Case("Olmo2ForCausalLM", "Olmo2Config"),
    "granite": Case(
        "GraniteForCausalLM",
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
        },
    ),
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", GPT2, own_sizes=True),
    "gpt2 scaled by layer": Case(
        "GPT2LMHeadModel", "GPT2Config", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, own_sizes=True
    ),
    "opt": Case("OPTForCausalLM", "OPTConfig", OPT, own_sizes=True),
    "opt with norms after": Case(
        "OPTForCausalLM",
        "OPTConfig",
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32},
        own_sizes=True,
    ),
}

LENGTH_CASES = {
    "dynamic": scaled("dynamic", factor=2.0),
    "longrope": scaled("longrope", factor=4.0, **ORIGINAL, **SHORT),
    "phi3 longrope": Case(
        "Phi3ForCausalLM", "Phi3Config", {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE}
    ),
}


@cache
def architectures() -> Mapping[str, Architecture]:
    modules = [import_module(f"quire_plugins.{family}") for family in FAMILIES]
    return {a.name: a for module in modules for a in module.quire_architectures()}


@dataclass(frozen=True)
class Pair:
    """The same weights here and in transformers."""

    theirs: Any
    ours: DecoderModel
    decoder: Decoder

    def logits(self, tokens: Tensor) -> Tensor:
        """What transformers gives for one whole prompt, [len, vocab]."""
        with torch.no_grad():
            logits: Tensor = self.theirs(tokens[None]).logits[0]
        return logits


@cache
def pair(case_id: str, reference: bool = False, page_size: int = 16) -> Pair:
    case = {**CASES, **LENGTH_CASES}[case_id]
    torch.manual_seed(0)
    sizes = {} if case.own_sizes else COMMON
    config = getattr(transformers, case.config_class)(**{**sizes, **case.config}, attn_implementation="eager")
    theirs = getattr(transformers, case.architecture)(config).eval().float()
    middle = 0.0 if "Gemma" in case.architecture else 1.0
    for name, parameter in theirs.named_parameters():
        if "norm" in name or "ln_" in name:
            torch.nn.init.normal_(parameter, middle if name.endswith("weight") else 0.0, 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    architecture = architectures()[case.architecture]
    decoder = architecture.decoder(config)
    ops = select.reference() if reference else select.choose(OpQuery("cpu", "float32", page_size=page_size))
    ours = build(decoder, ops)
    load_state_dict_into(ours, decoder, architecture.names, theirs.state_dict())
    return Pair(theirs, ours, decoder)


def prompts(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB, (length,), generator=generator) for length in lengths]


def compare(got: list[Tensor], want: list[Tensor]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, atol=TOLERANCE, rtol=0)


AWKWARD = [[Piece(0, n)] for n in (1, 5, 1, 1, 7, 3)]
MIXED = [
    [Piece(0, 3), Piece(1, 1), Piece(2, 7)],
    [Piece(2, 1), Piece(0, 5)],
    [Piece(0, 1), Piece(1, 1), Piece(2, 1), Piece(3, 1)],
    [Piece(1, 2), Piece(0, 1), Piece(2, 13)],
]


@pytest.mark.parametrize("case_id", CASES)
def test_a_whole_prompt_has_the_logits_of_transformers(case_id: str) -> None:
    both, [tokens] = pair(case_id), prompts(29)
    compare(run_tokens(both.ours, both.decoder, [tokens.tolist()]), [both.logits(tokens)])


@pytest.mark.parametrize("page_size", [16, 3])
@pytest.mark.parametrize("case_id", CASES)
def test_chunks_of_awkward_sizes_have_the_logits_of_transformers(case_id: str, page_size: int) -> None:
    both, [tokens] = pair(case_id, page_size=page_size), prompts(29)
    got = run_tokens(both.ours, both.decoder, [tokens.tolist()], AWKWARD, page_size=page_size)
    compare(got, [both.logits(tokens)])


@pytest.mark.parametrize("case_id", CASES)
def test_a_mixed_batch_has_the_logits_of_transformers(case_id: str) -> None:
    both, seqs = pair(case_id), prompts(23, 9, 30, 1)
    got = run_tokens(both.ours, both.decoder, [tokens.tolist() for tokens in seqs], MIXED)
    compare(got, [both.logits(tokens) for tokens in seqs])


@pytest.mark.parametrize("case_id", ["llama", "gemma2", "qwen3 moe", "opt"])
def test_reference_ops_give_the_same_logits(case_id: str) -> None:
    both, seqs = pair(case_id, reference=True), prompts(23, 9, 30, 1)
    got = run_tokens(both.ours, both.decoder, [tokens.tolist() for tokens in seqs], MIXED)
    compare(got, [both.logits(tokens) for tokens in seqs])


# --- rotary embeddings that depend on length: original length 16, or 64 for the dynamic one ----------------


@pytest.mark.parametrize("case_id", LENGTH_CASES)
@pytest.mark.parametrize("length", [9, 16, 17, 40, 70])
def test_prompts_within_and_over_the_original_length_have_the_logits_of_transformers(case_id: str, length: int) -> None:
    both, [tokens] = pair(case_id), prompts(length)
    both.logits(tokens[:1])  # a short prompt makes transformers forget the length of the one before
    compare(run_tokens(both.ours, both.decoder, [tokens.tolist()], AWKWARD[:3]), [both.logits(tokens)])


@pytest.mark.parametrize("case_id", LENGTH_CASES)
def test_a_long_neighbour_changes_nothing_for_a_short_prompt(case_id: str) -> None:
    both, seqs = pair(case_id), prompts(9, 70)
    want = []
    for tokens in seqs:
        both.logits(tokens[:1])
        want.append(both.logits(tokens))
    steps = [[Piece(0, 3), Piece(1, 40)], [Piece(1, 20), Piece(0, 6)]]
    compare(run_tokens(both.ours, both.decoder, [tokens.tolist() for tokens in seqs], steps), want)


@pytest.mark.parametrize("case_id", ["dynamic", "longrope"])
@pytest.mark.parametrize("prompt_len", [10, 62, 66])
def test_tokens_generated_over_the_original_length_have_the_logits_of_transformers(
    case_id: str, prompt_len: int
) -> None:
    both, [tokens] = pair(case_id), prompts(70)
    both.logits(tokens[:1])
    want = []
    with torch.no_grad():
        out = both.theirs(tokens[None, :prompt_len], use_cache=True)
        want.append(out.logits[0])
        for token in tokens[prompt_len:]:
            out = both.theirs(token[None, None], past_key_values=out.past_key_values, use_cache=True)
            want.append(out.logits[0])
    steps = [[Piece(0, prompt_len)], *([Piece(0, 1)] for _ in range(70 - prompt_len))]
    got = run_tokens(both.ours, both.decoder, [tokens.tolist()], steps, prompt_lens=[prompt_len])
    compare(got, [torch.cat(want)])


# --- checkpoints as they lie on disk --------------------------------------------------------------------


def per_expert(state: Mapping[str, Tensor], mixture: str, gate: str, up: str, down: str) -> dict[str, Tensor]:
    """Stacked experts as one tensor each, the layout of published checkpoints."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        prefix, _, kind = name.partition(".mlp.experts.")
        renamed = name.replace(".mlp.gate.", f".{mixture}.gate.")
        if not kind:
            found[renamed] = tensor
        for expert, matrix in enumerate(tensor if kind else ()):
            path = f"{prefix}.{mixture}.experts.{expert}"
            if kind == "gate_up_proj":
                found[f"{path}.{gate}.weight"], found[f"{path}.{up}.weight"] = matrix.chunk(2)
            else:
                found[f"{path}.{down}.weight"] = matrix
    return found


@pytest.mark.parametrize(
    ("case_id", "layout"),
    [
        ("mixtral", ("block_sparse_moe", "w1", "w3", "w2")),
        ("qwen3 moe", ("mlp", "gate_proj", "up_proj", "down_proj")),
    ],
)
def test_experts_load_one_by_one_as_well_as_stacked(case_id: str, layout: tuple[str, str, str, str]) -> None:
    both = pair(case_id)
    again = build(both.decoder, select.reference())
    state = per_expert(both.theirs.state_dict(), *layout)
    assert len(state) > len(both.theirs.state_dict())
    load_state_dict_into(again, both.decoder, architectures()[CASES[case_id].architecture].names, state)
    for mine, stacked in zip(again.parameters(), both.ours.parameters(), strict=True):
        assert torch.equal(mine, stacked)


def test_gpt2_loads_as_it_was_published_without_prefix_and_with_masks() -> None:
    both = pair("gpt2")
    published = {name.removeprefix("transformer."): tensor for name, tensor in both.theirs.state_dict().items()}
    published |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(2)}
    again = build(both.decoder, select.reference())
    load_state_dict_into(again, both.decoder, architectures()["GPT2LMHeadModel"].names, published)
    for mine, prefixed in zip(again.parameters(), both.ours.parameters(), strict=True):
        assert torch.equal(mine, prefixed)


# --- what the seams promise -------------------------------------------------------------------------------


def test_media_rows_replace_embeddings() -> None:
    both, [tokens] = pair("llama"), prompts(12)
    from quire_models.forward import MediaRows
    from quire_models.testing import Driver

    driver = Driver(both.ours, both.decoder, [tokens.tolist()])
    rows = torch.randn(3, 48)
    fwd = driver.forward([Piece(0, 12)])
    fwd.media = MediaRows(torch.tensor([4, 5, 6]), rows)
    embeddings = both.theirs.get_input_embeddings()(tokens).detach()
    embeddings[4:7] = rows
    with torch.no_grad():
        want = both.theirs(inputs_embeds=embeddings[None]).logits[0]
    compare([both.ours.logits(both.ours(fwd))], [want])


def test_bfloat16_stays_near_transformers() -> None:
    both, [tokens] = pair("llama"), prompts(29)
    architecture = architectures()["LlamaForCausalLM"]
    ours = build(both.decoder, select.choose(OpQuery("cpu", "bfloat16")), torch.bfloat16)
    load_state_dict_into(ours, both.decoder, architecture.names, both.theirs.state_dict())
    [got] = run_tokens(ours, both.decoder, [tokens.tolist()], AWKWARD)
    want = both.logits(tokens)
    assert (got - want).abs().max() < 0.05 * want.abs().max()
