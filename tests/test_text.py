"""Tokenizers, decoding while tokens arrive, and finding strings in text that arrives in pieces."""

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tiny_tokenizers import KINDS, SPECIAL, byte_level, save
from transformers import AutoTokenizer

from quire.errors import BadRequest, CheckpointError
from quire.text.decode import MAX_HELD, IncrementalDecoder
from quire.text.machine import Event, Span, StopMachine
from quire.text.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "The fox",
    " the fox  jumps\n\n over",
    "naïve café 你好 🙂👩‍👩‍👧!",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>already there",
    "two words é! don't",
    "\x00\u200b\ufffd",
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: Tokenizer.load(save(make(), root / kind)) for kind, make in KINDS.items()}


# --- tokenizer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
def test_ids_and_texts_are_those_of_transformers(kind: str, flags: dict[str, bool], tmp_path: Path) -> None:
    folder = save(KINDS[kind](), tmp_path, **flags)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    assert ours.vocab == theirs.get_vocab()
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
            assert ours.encode_batch([text, text], add_special_tokens=special) == [ids, ids]
            for skip in (True, False):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_tokens_that_only_the_config_lists_are_added(tmp_path: Path) -> None:
    added = {"900": {"content": "<tool>", "special": False}, "901": {"content": "<extra>", "special": True}}
    folder = save(
        byte_level(), tmp_path, added_tokens_decoder=added, pad_token="<pad>", additional_special_tokens=["<x>"]
    )
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    text = "a<tool>b<extra>c<pad><x>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True) == "a<tool>bc"
    assert ours.pad_id == theirs.pad_token_id


def test_special_tokens_may_be_objects_in_their_own_file(tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>", "lstrip": False}}))
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.eos_ids, tokenizer.bos_id) == ((SPECIAL.index("</s>"),), None)


def test_chat_templates_are_found_in_each_place_they_can_be(tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path, template=None)
    assert Tokenizer.load(folder).chat_template is None
    listed = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "tools"}]
    save(byte_level(), tmp_path, template=None, chat_template=listed)
    assert Tokenizer.load(folder).chat_templates == {"default": "listed", "tool_use": "tools"}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert Tokenizer.load(folder).chat_template == "json"
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag")
    assert Tokenizer.load(folder).chat_templates == {"default": "file", "tool_use": "tools", "rag": "rag"}


def test_a_folder_without_tokenizer_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer.*--tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(CheckpointError, match="There is no folder"):
        Tokenizer.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 1}'),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}'),
        ("special_tokens_map.json", "\xff"),
    ],
)
def test_a_corrupt_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path)
    (folder / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=re.escape(name)):
        Tokenizer.load(folder)


def test_other_formats_are_read_through_transformers(tmp_path: Path) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "the", "fox", "##es", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = Tokenizer.load(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("the foxes.") == theirs.encode("the foxes.")
    assert tokenizer.pad_id == theirs.pad_token_id
    assert tokenizer.decode(tokenizer.encode("the foxes.")) == "the foxes."


def test_text_that_is_no_text_is_a_bad_request(loaded: dict[str, Tokenizer]) -> None:
    with pytest.raises(BadRequest):
        loaded["byte_level"].encode("\ud800")
    with pytest.raises(BadRequest):
        loaded["byte_level"].encode_batch([5])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_alone_have_the_bytes_they_add_to_a_text(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded[kind]
    text = "the fox's b. é🙂"
    ids = tokenizer.encode("a " + text, add_special_tokens=False)
    joined = b"".join(tokenizer.token_bytes(i) for i in ids)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    if kind == "word_piece":  # its decoder tidies spaces before punctuation, which no token has alone
        assert joined.decode().replace(" ", "") == whole.replace(" ", "")
    else:
        assert joined.decode().strip() == whole.strip()
    assert tokenizer.token_bytes(tokenizer.vocab["<|im_end|>"]) == b"<|im_end|>"
    assert (tokenizer.token_bytes(10**6), tokenizer.token_string(-1)) == (b"", None)


def test_half_characters_have_their_bytes(loaded: dict[str, Tokenizer]) -> None:
    for kind in ("byte_level", "byte_fallback"):
        tokenizer = loaded[kind]
        ids = tokenizer.encode("字", add_special_tokens=False)[-3:]
        assert [tokenizer.token_bytes(i) for i in ids] == [bytes([byte]) for byte in "字".encode()]
        assert tokenizer.token_text(ids[0]) == "\ufffd"


def test_loading_a_tokenizer_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path)
    code = (
        "import sys; from quire.text.tokenizer import Tokenizer; import quire.text.outputs, quire.text.chat;"
        f"Tokenizer.load({str(folder)!r}).encode('hi'); assert not {{'torch', 'transformers'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- incremental decoding --------------------------------------------------------------------------


def pieces_of(tokenizer: Tokenizer, ids: list[int], cuts: random.Random, skip: bool, context: list[int]) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip, context)
    pieces, at = [], 0
    while at < len(ids):
        count = cuts.choice([1, 1, 1, 2, 5])
        pieces.append(decoder.push(ids[at : at + count]))
        at += count
    return [*pieces, decoder.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_and_flush_are_the_decoding_of_all_ids(
    kind: str, data: st.DataObject, loaded: dict[str, Tokenizer]
) -> None:
    tokenizer = loaded[kind]
    text = data.draw(st.text(st.sampled_from("the foxb.é字🙂 '\n"), max_size=40))
    ids = tokenizer.encode(text, add_special_tokens=False)
    for special in data.draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
        ids.insert(data.draw(st.integers(0, len(ids))), tokenizer.vocab[special])
    ids = whole_characters(tokenizer, ids)
    skip = data.draw(st.booleans())
    pieces = pieces_of(tokenizer, ids, random.Random(data.draw(st.integers(0, 99))), skip, [])
    assert "".join(pieces) == tokenizer.decode(ids, skip)


def whole_characters(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """`ids` without special tokens that a random insertion put inside a character."""
    kept: list[int] = []
    for token_id in ids:
        before = b"".join(tokenizer.token_bytes(i) for i in kept)
        if token_id in tokenizer.special_ids and "\ufffd" in before.decode("utf-8", "replace"):
            continue
        kept.append(token_id)
    return kept


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_ids_of_a_byte_level_vocabulary_decode_in_pieces(data: st.DataObject, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=60))
    skip = data.draw(st.booleans())
    pieces = pieces_of(tokenizer, ids, random.Random(1), skip, [])
    assert "".join(pieces) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "byte_level"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_decode_to_the_same_text_however_they_are_cut(
    kind: str, data: st.DataObject, loaded: dict[str, Tokenizer]
) -> None:
    tokenizer = loaded[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=60))
    together = "".join(pieces_of(tokenizer, ids, random.Random(1), True, []))
    assert together == "".join(pieces_of(tokenizer, ids, random.Random(2), True, []))
    intact = [i for i in ids if i >= tokenizer.vocab_size or not tokenizer.token_string(i).startswith("<0x")]  # type: ignore[union-attr]
    assert "".join(pieces_of(tokenizer, intact, random.Random(3), True, [])) == tokenizer.decode(intact)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "unigram"])
def test_a_character_of_several_tokens_comes_whole(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded[kind]
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push([i]) for i in tokenizer.encode("b 🙃 b", add_special_tokens=False)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(tokenizer.encode("b 🙃 b", add_special_tokens=False))


@pytest.mark.parametrize("kind", ["byte_fallback", "unigram", "word_piece"])
def test_the_first_token_keeps_its_space_after_a_prompt(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded[kind]
    prompt, answer = "the", "fox"
    context = tokenizer.encode(prompt, add_special_tokens=False)
    ids = tokenizer.encode(f"{prompt} {answer}", add_special_tokens=False)[len(context) :]
    decoder = IncrementalDecoder(tokenizer, context=context)
    assert decoder.push(ids) + decoder.flush() == f" {answer}"
    assert IncrementalDecoder(tokenizer).push(ids).strip() == answer


def test_broken_bytes_are_held_back_only_for_a_while(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_fallback"]
    lead = tokenizer.vocab["<0xE5>"]
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push([lead]) for _ in range(MAX_HELD * 3)]
    assert "".join(pieces) == "\ufffd" * MAX_HELD * 3


def test_decoding_costs_the_same_late_in_a_text_as_early(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_fallback"]
    seen: list[int] = []

    class Counting(Tokenizer):
        def decode(self, ids, *args, **kwargs):  # type: ignore[no-untyped-def]
            seen.append(len(ids))
            return super().decode(ids, *args, **kwargs)

    tokenizer.__class__, before = Counting, tokenizer.__class__
    try:
        decoder = IncrementalDecoder(tokenizer)
        for _ in range(300):
            decoder.push(tokenizer.encode("the fox 🙃", add_special_tokens=False))
    finally:
        tokenizer.__class__ = before
    assert max(seen) <= 2 * MAX_HELD + 1


# --- stop strings and spans ------------------------------------------------------------------------


def run(machine: StopMachine, pieces: list[str]) -> tuple[list[Event], str | None]:
    state, events = machine.start(), []
    for piece in pieces:
        step = machine.step(state, piece)
        state = step.state
        events.extend(step.events)
    step = machine.flush(state)
    return [*events, *step.events], step.matched


def joined(events: list[Event]) -> list[tuple[str, int, str]]:
    """Texts of one kind and span joined, delimiters kept as marks."""
    out: list[tuple[str, int, str]] = []
    for event in events:
        mark = "(" if event.opened else ")" if event.closed else event.text
        if mark == event.text and out and out[-1][:2] == (event.kind, event.number) and out[-1][2] != "(":
            mark = out.pop()[2] + mark
        out.append((event.kind, event.number, mark))
    return out


@pytest.mark.parametrize(
    ("stops", "text", "expected", "matched"),
    [
        ((), "anything", "anything", None),
        (("stop",), "go on", "go on", None),
        (("stop",), "go stop now", "go ", "stop"),
        (("b", "abc"), "xabcb", "xa", "b"),
        (("abc", "bc"), "xabc", "x", "abc"),
        (("aab",), "aaab", "a", "aab"),
        (("\n\n",), "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (("END",), "the EN", "the EN", None),
    ],
)
def test_text_ends_before_the_stop_string_that_is_complete_first(
    stops: tuple[str, ...], text: str, expected: str, matched: str | None
) -> None:
    events, found = run(StopMachine(stops), list(text))
    assert ("".join(event.text for event in events), found) == (expected, matched)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    machine = StopMachine(["<end>"])
    step = machine.step(machine.start(), "abc <en")
    assert (step.text, step.state.held) == ("abc ", "<en")
    assert machine.step(step.state, "t").text == "<ent"
    assert machine.step(step.state, "d> and more").matched == "<end>"


def test_a_disarmed_machine_finds_nothing_that_is_complete_by_then() -> None:
    machine = StopMachine(["ab"])
    step = machine.step(machine.start(), "ab a", armed=False)
    assert (step.text, step.matched, step.state.held) == ("ab ", None, "a")
    assert machine.step(step.state, "b").matched == "ab"


def test_spans_are_told_from_text() -> None:
    machine = StopMachine(["STOP"], [Span("think", "<t>", "</t>"), Span("tool", "[", "]")])
    events, matched = run(machine, ["a<t>b[</t>c[d]", "[e ST", "OP]f"])
    assert joined(events) == [
        ("text", -1, "a"),
        ("think", 0, "("),
        ("think", 0, "b["),
        ("think", 0, ")"),
        ("text", -1, "c"),
        ("tool", 1, "("),
        ("tool", 1, "d"),
        ("tool", 1, ")"),
        ("tool", 2, "("),
        ("tool", 2, "e "),
    ]
    assert matched == "STOP"


def test_a_span_may_begin_with_the_text_and_last_to_its_end() -> None:
    thinking, _ = run(StopMachine(spans=[Span("think", "", "</t>")]), ["a</", "t>b"])
    assert joined(thinking) == [("think", 0, "a"), ("think", 0, ")"), ("text", -1, "b")]
    rest, _ = run(StopMachine(spans=[Span("tool", "[CALLS]", "")]), ["a[CA", "LLS]b] c"])
    assert joined(rest) == [("text", -1, "a"), ("tool", 0, "("), ("tool", 0, "b] c")]


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab<>[]", max_size=30),
    stops=st.lists(st.text("ab<>[]", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_any_split_of_the_text_gives_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    machine = StopMachine(stops, [Span("one", "<a", "a>"), Span("two", "[", "]")])
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[i:j] for i, j in itertools.pairwise(at)]
    whole, found = run(machine, [text])
    split, also = run(machine, pieces)
    assert (joined(split), also) == (joined(whole), found)
    if not stops:
        delimiters = {"one": ("<a", "a>"), "two": ("[", "]")}
        again = "".join(
            delimiters[e.kind][0] if e.opened else delimiters[e.kind][1] if e.closed else e.text for e in split
        )
        assert again == text
