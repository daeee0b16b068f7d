"""`bench structured`: what it measures, and that its hostile constraints are what they are called."""

import json
import re
from pathlib import Path

import pytest
from paths import ROOT

import quire_demos
from quire.cli import main
from quire_bench import _KINDS
from quire_bench.adversarial import adversarial_batch

CHAT = Path(quire_demos.__file__).parent / "demo_chat"
SMALL = ["--num-prompts", 2, "--input-len", 8, "--output-len", 24, "--repeats", 1, "--streams", 2, "--stream-len", 30]


def test_constrained_and_free_requests_are_compared_at_equal_length(tmp_path: Path) -> None:
    words = ["bench", "structured", CHAT, *SMALL, "--hostile", 4, "--every", 0.01]
    assert main([*map(str, words), "--output-json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert 0 < figures["output_tokens"] <= 2 * 24
    assert figures["share_of_free"] == pytest.approx(figures["free_s"] / figures["constrained_s"])
    added = figures["first_token_new_schema_ms"] - figures["first_token_no_schema_ms"]
    assert figures["schema_adds_ms"] == pytest.approx(added)
    assert figures["hostile_sent"] >= 4
    assert figures["hostile_refused"] <= figures["hostile_sent"]
    assert figures["p99_over_alone"] == pytest.approx(figures["beside_hostile_p99_ms"] / figures["alone_p99_ms"])


def test_no_hostile_constraint_is_another_one() -> None:
    sent = [*adversarial_batch(0, 40), *adversarial_batch(40, 40)]
    assert len(set(sent)) == 80
    assert len({each.kind for each in sent}) == 5


def test_a_model_that_cannot_be_constrained_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--plugins", "llama", "structured", CHAT, *SMALL]
    assert main(list(map(str, words))) == 2
    assert "No loaded plugin constrains the output by 'json_schema'" in capsys.readouterr().err


def test_every_kind_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "serving.md").read_text().partition("## Measuring")[2].partition("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|.* (?:process|servers?|simulation) \|$", text, re.MULTILINE)) == {*_KINDS}
