"""`bench pictures`: what it measures, and for whom."""

import json
from pathlib import Path

import pytest

import quire_demos
from quire.cli import main

DEMOS = Path(quire_demos.__file__).parent
CHAT, LLAVA = DEMOS / "demo_chat", DEMOS / "demo_llava"

SMALL = ["--num-prompts", 4, "--input-len", 8, "--output-len", 4, "--repeats", 1, "--picture-size", 80]


def bench(*words):
    return main(["bench", "pictures", *map(str, words)])


def test_half_of_the_prompts_have_a_new_picture(tmp_path):
    assert bench(LLAVA, *SMALL, "--output-json", tmp_path / "figures.json") == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["requests"], figures["pictures"], figures["pictures_encoded"]) == (4, 2, 2)
    assert figures["picture_tokens"] == 2 * 81
    assert figures["prompt_tokens"] == 2 * 81 + 4 * 8
    assert figures["output_tokens"] == 4 * 4
    both = figures["as_text_s"] + figures["tower_alone_s"]
    assert figures["share_of_both"] == pytest.approx(both / figures["with_pictures_s"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([CHAT, *SMALL], "takes no pictures"),
        ([LLAVA, *SMALL, "--share", 1.5], "--share"),
        ([LLAVA, *SMALL, "--share", 0.1], "no prompt"),
    ],
    ids=["text", "more than all", "none"],
)
def test_what_cannot_be_measured_is_refused(words, message, capsys):
    try:
        status = bench(*words)
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    assert message in capsys.readouterr().err
