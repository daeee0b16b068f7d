"""Tokenizers give the ids and texts that those of transformers give."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_tokenizers import KINDS, SPECIAL, byte_level, save
from transformers import AutoTokenizer

from quire.errors import BadRequest, CheckpointError
from quire.text.tokenizer.tokenizer import Tokenizer

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


@pytest.mark.process
def test_loading_a_tokenizer_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path)
    code = (
        "import sys; from quire.text.tokenizer.tokenizer import Tokenizer;"
        "import quire.text.outputs.outputs, quire.text.chat.templates;"
        f"Tokenizer.load({str(folder)!r}).encode('hi'); assert not {{'torch', 'transformers'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.process
def test_words_that_never_come_back_take_little_memory(tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path)
    code = (
        "import random; from pathlib import Path; from quire.text.tokenizer.tokenizer import Tokenizer;"
        f"tokenizer = Tokenizer.load({str(folder)!r}); draw = random.Random(0);"
        "size = lambda: int(Path('/proc/self/statm').read_text().split()[1]) / 256;"
        "words = lambda count: [tokenizer.encode(''.join(draw.choices('abcdefgh', k=240))) for _ in range(count)];"
        "words(100); before = size(); [words(100) for _ in range(120)]; assert size() - before < 64, size() - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
