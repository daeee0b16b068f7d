"""Constraints that begin after a text: no token writes the end of that text together with part of the answer."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_rig import Rig, make_rig
from tokenizers import AddedToken, Tokenizer

from quire.engine.structured.start_trigger import StartTrigger, TriggerProgress
from quire.hooks import registry
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredSpec
from quire_testing.tiny import END_ID, tiny_llama

LONGER = ["k>1", ">2", ">\n", "k>\n\n"]
"""Tokens of several characters that the model's tokenizer has after those of `byte_tokenizer`, from id 260 on."""


def runs_past(text: bytes, tail: bytes, token: bytes) -> bool:
    """Whether the text is first complete within a token that goes on with more than line breaks."""
    whole = tail + token
    at = whole.find(text)
    return at >= 0 and whole[at + len(text) :].strip(b"\n") != b""


@pytest.mark.parametrize("text", [b"</think>", b"a", b"ab", b"aab", b"abab", b"here: "])
def test_just_the_tokens_that_go_on_after_the_text_are_forbidden(text: bytes) -> None:
    draw = random.Random(text.decode())
    letters = [bytes([letter]) for letter in {*text, *b"xy\n"}]
    some = [b"".join(draw.choices(letters, k=draw.randint(0, 5))) for _ in range(300)]
    cut = [text[draw.randrange(len(text)) :] + draw.choice([b"", b"\n", b"x", text]) for _ in range(60)]
    tokens = [*letters, *some, *cut, text, text + b"\n", text + b"x", b"x" + text + b"y"]
    opening = StartTrigger.from_text(text, tokens)
    num_forbidden = 0
    for _ in range(60):
        gate, written = TriggerProgress(opening), b""
        while text not in written and len(written) < 60:
            forbidden = set(gate.forbidden_ids().tolist())
            assert forbidden == {i for i, token in enumerate(tokens) if runs_past(text, written, token)}
            num_forbidden += len(forbidden)
            token = draw.choice([token for i, token in enumerate(tokens) if i not in forbidden])
            written += token
            assert gate.append(token) == (text in written)
        assert written.partition(text)[2].strip(b"\n") == b""
    assert num_forbidden > 0


def test_where_no_token_can_go_on_nothing_is_forbidden() -> None:
    opening = StartTrigger.from_text(b"</think>", [bytes([i]) for i in range(256)])
    assert not opening.overrun_ids
    assert len(opening.forbidden_ids(b"</think")) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in LONGER])
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    made = make_rig(folder, registry.load(None), num_pages=225)
    yield made
    made.engine.close()


def text_of(token_ids: list[int]) -> bytes:
    return b"".join(bytes([i]) if i < 256 else LONGER[i - 260].encode() for i in token_ids if i != END_ID)


ASKED = StructuredSpec(kind="regex", source="[0-9]{3}", after="k>")
EAGER = dict.fromkeys([ord("k"), ord(">"), *range(260, 264)], 100.0)
"""A bias towards all that the text may be written with, and goes on after it."""


def test_all_of_the_answer_is_held_to_the_grammar(rig: Rig) -> None:
    request = rig.add(
        [1, 2, 3], SamplingParams(n=16, seed=5, temperature=2, max_tokens=200, structured=ASKED, logit_bias=EAGER)
    )
    answers = [answer for (owner, _), answer in rig.drain().items() if owner == request]
    ends = set()
    for answer in answers:
        assert answer.last.finish_reason == "stop", answer.last
        before, _, rest = text_of(answer.token_ids).partition(b"k>")
        assert re.fullmatch(rb"\n*[0-9]{3}", rest), (before, rest)
        ends.add(rest[:-3])
    assert len(ends) > 1  # with line breaks and without


def test_beams_are_held_to_it_too(rig: Rig) -> None:
    asked = StructuredSpec(kind="regex", source="[0-9]{3}", after=">")
    request = rig.add([1, 2, 3], BeamSearchParams(beam_width=4, max_tokens=60, structured=asked))
    answers = [answer for (owner, _), answer in rig.drain().items() if owner == request]
    found = [text_of(answer.token_ids).partition(b">") for answer in answers if answer.last.finish_reason == "stop"]
    assert any(mark for _, mark, _ in found)
    assert all(re.fullmatch(rb"\n*[0-9]{3}", rest) for _, mark, rest in found if mark)


def test_it_is_the_same_among_others_and_after_preemption(folder: Path, rig: Rig) -> None:
    params = [
        SamplingParams(seed=i, temperature=2, max_tokens=60, structured=ASKED if i % 3 else None, logit_bias=EAGER)
        for i in range(9)
    ]
    wanted = [rig.tokens([[7, i]], [one])[0] for i, one in enumerate(params)]
    small = make_rig(folder, registry.load(None), num_pages=40, page_size=4, preemption="recompute")
    try:
        assert small.tokens([[7, i] for i in range(9)], params) == wanted
        assert small.engine.stats().num_preemptions_recompute_total > 0
    finally:
        small.engine.close()
