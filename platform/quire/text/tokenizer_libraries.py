"""The two libraries a tokenizer can run on: `tokenizers` for tokenizer.json, transformers for the rest.

It knows how to set them up as the folder's config files say, and nothing of what is encoded.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.text.long_texts import Piece, around, pieces
from quire.text.room import Room
from quire.text.tokenizer import Encodes, Texts, parse_decoder
from quire.text.tokenizer_files import NAMED_TOKENS, TokenizerFiles, missing

if TYPE_CHECKING:
    import tokenizers

MANY_IDS = 4096
"""Ids from which decoding goes a way that lets other threads run, and costs more."""


log = logging.getLogger(__name__)

VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
)
"""Files that transformers makes a tokenizer of."""


class FastLibrary:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def pieces(self, text: str) -> Iterator[Piece]:
        """Ids of a long text."""
        return pieces(self._backend, text)

    @cached_property
    def around(self) -> tuple[list[int], list[int]] | None:
        """Special tokens before and after a text."""
        return around(self._backend)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of each text, in parallel."""
        batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in batch]

    def encode_within(self, texts: Sequence[Texts], room: Room) -> list[tuple[list[int], list[int]]]:
        """Ids and token types of each text or pair, cut so that it fits; in parallel."""
        batch = self._backend.encode_batch(list(texts), add_special_tokens=True)
        return [_within(encoding, room) for encoding in batch]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        """Text of ids; this library never puts spaces between special tokens."""
        if len(ids) < MANY_IDS:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)  # lets others run
        return text

    def vocab(self) -> Mapping[str, int]:
        """Every token, added ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def special(self) -> Iterable[int]:
        """Ids of added tokens marked special."""
        return [index for index, token in self._backend.get_added_tokens_decoder().items() if token.special]

    def added(self) -> Iterable[int]:
        """Ids of added tokens."""
        return list(self._backend.get_added_tokens_decoder())

    def decoder(self) -> Mapping[str, Any] | None:
        """The decoder's JSON."""
        decoder = self._backend.decoder
        return None if decoder is None else parse_decoder(decoder.__getstate__())


class SlowLibrary:
    """A transformers tokenizer written in Python."""

    def __init__(self, backend: Any, lower_case: bool = False) -> None:
        self._backend, self._lower_case = backend, lower_case

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        text = text.lower() if self._lower_case else text
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens))

    def pieces(self, text: str) -> Iterator[Piece]:
        """Ids of a long text, in one piece: these libraries do not say where tokens begin."""
        yield Piece(self.encode(text, add_special_tokens=False), len(text))

    @cached_property
    def around(self) -> tuple[list[int], list[int]] | None:
        """Special tokens before and after a text."""
        found: list[int] = self._backend.build_inputs_with_special_tokens([])
        whole: list[int] = self._backend.build_inputs_with_special_tokens([-1])
        return (whole[: whole.index(-1)], whole[whole.index(-1) + 1 :]) if len(whole) == len(found) + 1 else None

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of each text."""
        return [self.encode(text, add_special_tokens) for text in texts]

    def encode_within(self, texts: Sequence[Texts], room: Room) -> list[tuple[list[int], list[int]]]:
        """Ids and token types of each text or pair, cut so that it fits."""
        return [self._within((text,) if isinstance(text, str) else text, room) for text in texts]

    def _within(self, texts: Sequence[str], room: Room) -> tuple[list[int], list[int]]:
        parts = [self.encode(text, add_special_tokens=False) for text in texts]
        counts = len(parts[0]), sum(map(len, parts[1:]))
        shares = room.shares(*counts, self._backend.num_special_tokens_to_add(pair=len(parts) > 1))
        cut = [[ids[i] for i in room.kept(len(ids), share)] for ids, share in zip(parts, shares, strict=False)]
        ids = self._backend.build_inputs_with_special_tokens(*cut)
        return list(ids), list(self._backend.create_token_type_ids_from_sequences(*cut))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        """Text of ids."""
        known = [i for i in ids if i < len(self._backend)]
        return self._backend.decode(
            known,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )

    def vocab(self) -> Mapping[str, int]:
        """Every token, added ones included."""
        return dict(self._backend.get_vocab())

    def special(self) -> Iterable[int]:
        """Ids of special tokens."""
        return list(self._backend.all_special_ids)

    def added(self) -> Iterable[int]:
        """Ids of added tokens."""
        return list(self._backend.added_tokens_decoder)

    def decoder(self) -> Mapping[str, Any] | None:
        """These libraries do not describe how they decode."""
        return None


def _within(encoding: tokenizers.Encoding, room: Room) -> tuple[list[int], list[int]]:
    ids, types = encoding.ids, encoding.type_ids
    if len(ids) <= room.least:
        return ids, types
    owners = encoding.sequence_ids  # 0 or 1, None for special tokens
    counts = owners.count(0), owners.count(1)
    shares = room.shares(*counts, len(owners) - sum(counts))
    kept = [room.kept(count, share) for count, share in zip(counts, shares, strict=True)]
    numbers = itertools.count(), itertools.count()
    places = [i for i, owner in enumerate(owners) if owner is None or next(numbers[owner]) in kept[owner]]
    return [ids[i] for i in places], [types[i] for i in places]


def load_library(
    folder: Path, files: TokenizerFiles, mode: str = "auto", trust_remote_code: bool = False
) -> tuple[Encodes, dict[str, str] | None]:
    """The library for a folder, and the special tokens it found by itself (None = those of `files` hold).

    mode, trust_remote_code: see `Tokenizer.load`. Code of the folder is run only where it brings a tokenizer class.
    """
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder} to load a tokenizer from.")
    if mode == "mistral":
        from quire.text.mistral_tokenizer import load_mistral

        library = load_mistral(folder)
        return library, library.special_tokens()
    path = folder / "tokenizer.json"
    if path.is_file() and mode == "auto" and not (trust_remote_code and files.has_code):
        return FastLibrary(_read_tokenizer_json(path, files)), None
    return _through_transformers(folder, files, mode == "slow", trust_remote_code)


def _read_tokenizer_json(path: Path, files: TokenizerFiles) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}.") from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = files.split_special_tokens
    _add_tokens(backend, files)
    return _lowering(backend) if files.lower_case else backend


def _lowering(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same, with texts lowered before anything else; its special tokens are found before that."""
    from tokenizers.normalizers import Lowercase, Sequence as Steps

    steps = [Lowercase(), backend.normalizer] if backend.normalizer is not None else [Lowercase()]
    backend.normalizer = Steps(steps)  # type: ignore[assignment]
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Add what the config files list and tokenizer.json lacks."""
    from tokenizers import AddedToken

    known = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    named = dict.fromkeys([*files.special.values(), *files.extra_special])
    for token in files.added.values():
        flags = {name: token[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in token}
        text = str(token["content"])
        if text not in known:
            special = text in named or token.get("special") is True
            backend.add_tokens([AddedToken(text, special=special, **flags)])
            known[text] = special
    missing_tokens = [text for text in named if not known.get(text)]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing_tokens])


def _through_transformers(
    folder: Path, files: TokenizerFiles, slow: bool, trust_remote_code: bool
) -> tuple[Encodes, dict[str, str]]:
    has_vocabulary = any((folder / name).is_file() for name in VOCABULARIES)
    if not has_vocabulary and not (folder / "tokenizer_config.json").is_file():
        raise missing(folder)
    if files.has_code and not trust_remote_code:
        raise CheckpointError(
            f"The tokenizer in {folder} is code of the checkpoint. If you trust it, --trust-remote-code runs it; or "
            "name another folder with --tokenizer."
        )
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(
            str(folder), use_fast=not slow, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # each tokenizer class fails in its own way
        if not has_vocabulary:
            raise missing(folder) from error
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"The tokenizer in {folder} cannot be loaded: {reason}") from error
    if not has_vocabulary and len(backend) <= len(set(backend.all_special_ids)):
        raise missing(
            folder
        )  # some classes make an empty tokenizer of settings alone; those of bytes have a vocabulary
    named = {name: getattr(backend, name) for name in NAMED_TOKENS}
    special = {name: str(text) for name, text in named.items() if text is not None}
    if slow and backend.is_fast:
        log.warning(
            "--tokenizer-mode slow: transformers has no tokenizer in Python for %s; it uses the fast one", folder
        )
    if backend.is_fast:
        fast = backend.backend_tokenizer
        return FastLibrary(_lowering(fast) if files.lower_case else fast), special
    return SlowLibrary(backend, files.lower_case), special
