"""`bench quality`: perplexity and KL divergence, compared with transformers."""

import ast
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import quire_demos
from quire.cli import main
from quire_bench.docstrings import STANDARD_LIBRARY, documentation_strings
from quire_bench.quality import text_windows

CHAT = Path(quire_demos.__file__).parent / "demo_chat"
LEN, WINDOWS = 32, 3


def bench(*words):
    return main(["bench", "quality", *map(str, words)])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "text.txt"
    file.write_text("".join(f"<|im_start|>user\nWhat is {i} plus {i}?<|im_end|>\n" for i in range(40)))
    return file


def reference_logprobs(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the second half of each window by transformers, and the ids that follow."""
    ids = torch.tensor(AutoTokenizer.from_pretrained(CHAT).encode(text))[: LEN * WINDOWS].view(WINDOWS, LEN)
    model = AutoModelForCausalLM.from_pretrained(CHAT, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = model(ids).logits.log_softmax(-1)
    return logprobs[:, LEN // 2 : -1].flatten(0, 1), ids[:, LEN // 2 + 1 :].flatten()


def test_perplexity_is_that_of_transformers_over_the_second_half_of_each_window(text, tmp_path):
    words = ["--text", text, "--windows", WINDOWS, "--window-len", LEN, "--dtype", "float32"]
    assert bench(CHAT, *words, "--output-json", tmp_path / "figures.json") == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    logprobs, following = reference_logprobs(text.read_text())
    scored = logprobs.gather(1, following[:, None])[:, 0]
    assert (figures["windows"], figures["scored_tokens"]) == (WINDOWS, WINDOWS * (LEN - LEN // 2 - 1))
    assert math.log(figures["perplexity"]) == pytest.approx(-scored.mean().item(), abs=1e-4)
    error = scored.std().item() / math.sqrt(len(scored))
    assert figures["perplexity_error"] / figures["perplexity"] == pytest.approx(error, rel=1e-3)


def test_the_divergence_from_a_model_to_itself_is_zero_and_to_another_is_not(text, tmp_path):
    words = ["--text", text, "--windows", WINDOWS, "--window-len", LEN, "--output-json", tmp_path / "figures.json"]
    assert bench(CHAT, *words, "--reference", CHAT) == 0
    same = json.loads((tmp_path / "figures.json").read_text())
    assert (same["kl_mean"], same["kl_max"], same["same_top_token_percent"]) == (0, 0, 100)
    assert same["perplexity_ratio"] == 1
    assert bench(CHAT, *words, "--reference", CHAT, "--quantization", "int8") == 0
    other = json.loads((tmp_path / "figures.json").read_text())
    assert 0 < other["kl_p50"] <= other["kl_p90"] <= other["kl_p99"] <= other["kl_max"]
    assert other["reference_perplexity"] == same["perplexity"]
    assert other["perplexity_ratio"] == pytest.approx(other["perplexity"] / other["reference_perplexity"])


def test_every_window_begins_with_the_token_that_begins_texts():
    def encode(text, add_special_tokens=True):
        return [1] * add_special_tokens + [*text.encode()]

    model = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode), info=SimpleNamespace(max_model_len=100))
    windows = text_windows(model, "abcdefghijk", 4)
    assert windows == [(1, *b"abc"), (1, *b"efg"), (1, *b"ijk")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--window-len", 1024, "--text", __file__], "--window-len 1024: the model takes at most 1023 tokens"),
        (["--window-len", 1000, "--text", __file__ + "x"], "cannot be read"),
        (["--window-len", 512, "--text", CHAT / "generation_config.json"], "fewer than a window of 512"),
    ],
    ids=["too long", "missing", "too short"],
)
def test_a_text_that_cannot_be_measured_is_refused(words, message, capsys):
    assert bench(CHAT, *words) == 2
    assert message in capsys.readouterr().err


def test_the_docstrings_of_a_library_are_in_the_order_of_modules_and_source():
    files = sorted(Path(json.__file__).parent.glob("*.py"))
    text = documentation_strings(files[0].parent)
    modules = [ast.get_docstring(ast.parse(file.read_text())) for file in files]
    places = [text.find(docstring) for docstring in modules if docstring]
    assert -1 < places[0] < places[1]
    assert places == sorted(places)
    assert Path(json.__file__) == STANDARD_LIBRARY / "json" / "__init__.py"
