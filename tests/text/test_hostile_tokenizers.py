"""Tokenizers that multiply short texts are refused, and what a library cannot do is an error of a request."""

import os

import pytest
from tokenizer_bombs import BOUNDED, REFUSED, changed
from tokenizers import decoders, normalizers, processors

from quire.errors import BadRequest, CheckpointError
from quire.text.tokenizer.limits import MAX_FILE_BYTES
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing.tiny import byte_tokenizer


@pytest.fixture
def folder(tmp_path):
    byte_tokenizer(tmp_path)
    return tmp_path


def change(folder, what):
    path = folder / "tokenizer.json"
    path.write_text(changed(path.read_text(), what))


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_multiplies_texts_is_refused(folder, name):
    what, said = REFUSED[name]
    change(folder, what)
    with pytest.raises(CheckpointError, match=str(folder)) as found:
        Tokenizer.load(folder)
    assert said in found.value.message


@pytest.mark.parametrize("name", BOUNDED)
def test_what_the_library_cannot_tokenize_is_an_error_of_the_request(folder, name):
    what, text = BOUNDED[name]
    change(folder, what)
    tokenizer = Tokenizer.load(folder)
    for encode in (tokenizer.encode, tokenizer.encode_long, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(BadRequest, match=r"cannot be tokenized: (Onig|WordPiece)"):
            encode(text)


def test_a_decoder_that_fails_is_an_error_of_the_request(folder):
    def fuse(value):
        step = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}
        value["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, step]}

    change(folder, fuse)
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("a" * 40 + "!", add_special_tokens=False)
    with pytest.raises(BadRequest, match="cannot be made of the tokens"):
        tokenizer.decode(ids)


def test_a_file_that_is_too_large_is_not_read(folder):
    os.truncate(folder / "tokenizer.json", MAX_FILE_BYTES + 1)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json .* at most 268435456 are read"):
        Tokenizer.load(folder)


def test_tokenizers_as_models_have_them_are_accepted(folder):
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    french = [normalizers.Replace(mark, "..." if mark == "…" else '"') for mark in "…«»“”„"] * 3
    spaces = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    made.normalizer = normalizers.Sequence([*french, spaces, normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<s>"])
    pair = "<s> $A <s> $B"
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair=pair, special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    assert Tokenizer.load(folder).encode("a")
