"""The two tokenizer back ends, configured from the files of the folder.

`tokenizers` reads tokenizer.json; transformers reads every other format.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import BadRequest, CheckpointError
from quire.text.tokenizer.files import NAMED_TOKENS, TokenizerFiles, no_tokenizer_error
from quire.text.tokenizer.limits import check_costs, check_file_size
from quire.text.tokenizer.long_texts import TextBlock, encode_blocks, surrounding_tokens
from quire.text.tokenizer.pair_truncation import PairTruncation
from quire.text.tokenizer.tokenizer import Texts, TokenizerBackend, parse_decoder

if TYPE_CHECKING:
    import tokenizers

MIN_IDS_FOR_BATCH_DECODE = 4096
"""From this number of ids on, decoding uses the batch function, which is slower but releases the GIL."""

MAX_CACHED_WORDS = 4096
"""Words whose tokens a model of `tokenizers` keeps. A word of 255 bytes takes 3 KB, so the library's own 10,000 let
random words grow the process by 30 MB for each model. Ordinary text is tokenized up to 10 % slower than with 10,000."""

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
"""Vocabulary files from which transformers builds a tokenizer."""


@contextmanager
def _library_errors(done: str) -> Iterator[None]:
    """Raise `BadRequest` for the library's own errors. done: the end of "The text cannot be …"."""
    try:
        yield
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise BadRequest(f"The text cannot be {done}: {str(error)[:200]}.", "prompt") from error


def _is_of_library(error: BaseException) -> bool:
    """Whether `tokenizers` raised it: a bare Exception, or a panic, which is not even an Exception."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


class FastBackend:
    """Back end of a `tokenizers.Tokenizer`, which is written in Rust."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        if hasattr(backend.model, "_resize_cache"):  # BPE and Unigram; other models keep no words
            backend.model._resize_cache(MAX_CACHED_WORDS)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        with _library_errors("tokenized"):
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_blocks(self, text: str) -> Iterator[TextBlock]:
        with _library_errors("tokenized"):
            yield from encode_blocks(self._backend, text)

    @cached_property
    def surrounding_tokens(self) -> tuple[list[int], list[int]] | None:
        return surrounding_tokens(self._backend)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Encode the texts in parallel."""
        with _library_errors("tokenized"):
            batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in batch]

    def encode_truncated(self, texts: Sequence[Texts], truncation: PairTruncation) -> list[tuple[list[int], list[int]]]:
        """Encode the texts and pairs in parallel, then truncate them."""
        with _library_errors("tokenized"):
            batch = self._backend.encode_batch(list(texts), add_special_tokens=True)
        return [_truncated(encoding, truncation) for encoding in batch]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        """Text of ids. The library never puts spaces between special tokens."""
        with _library_errors("made of the tokens"):
            if len(ids) < MIN_IDS_FOR_BATCH_DECODE:
                return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
            (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)  # without GIL
            return text

    def vocab(self) -> Mapping[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    def special_ids(self) -> Iterable[int]:
        return [index for index, token in self._backend.get_added_tokens_decoder().items() if token.special]

    def added_ids(self) -> Iterable[int]:
        return list(self._backend.get_added_tokens_decoder())

    def decoder_config(self) -> Mapping[str, Any] | None:
        decoder = self._backend.decoder
        return None if decoder is None else parse_decoder(decoder.__getstate__())


class SlowBackend:
    """Back end of a transformers tokenizer that is written in Python. lower_case: lower texts before encoding."""

    def __init__(self, backend: Any, lower_case: bool = False) -> None:
        self._backend, self._lower_case = backend, lower_case

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        text = text.lower() if self._lower_case else text
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens))

    def encode_blocks(self, text: str) -> Iterator[TextBlock]:
        """Encode a long text as a single block, because these tokenizers do not report token positions."""
        yield TextBlock(self.encode(text, add_special_tokens=False), len(text))

    @cached_property
    def surrounding_tokens(self) -> tuple[list[int], list[int]] | None:
        special: list[int] = self._backend.build_inputs_with_special_tokens([])
        whole: list[int] = self._backend.build_inputs_with_special_tokens([-1])
        return (whole[: whole.index(-1)], whole[whole.index(-1) + 1 :]) if len(whole) == len(special) + 1 else None

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return [self.encode(text, add_special_tokens) for text in texts]

    def encode_truncated(self, texts: Sequence[Texts], truncation: PairTruncation) -> list[tuple[list[int], list[int]]]:
        return [self._truncated((text,) if isinstance(text, str) else text, truncation) for text in texts]

    def _truncated(self, texts: Sequence[str], truncation: PairTruncation) -> tuple[list[int], list[int]]:
        parts = [self.encode(text, add_special_tokens=False) for text in texts]
        counts = len(parts[0]), sum(map(len, parts[1:]))
        num_kept = truncation.split(*counts, self._backend.num_special_tokens_to_add(pair=len(parts) > 1))
        kept = [
            [ids[i] for i in truncation.kept_range(len(ids), count)]
            for ids, count in zip(parts, num_kept, strict=False)
        ]
        ids = self._backend.build_inputs_with_special_tokens(*kept)
        return list(ids), list(self._backend.create_token_type_ids_from_sequences(*kept))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        known = [i for i in ids if i < len(self._backend)]
        return self._backend.decode(
            known,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )

    def vocab(self) -> Mapping[str, int]:
        return dict(self._backend.get_vocab())

    def special_ids(self) -> Iterable[int]:
        return list(self._backend.all_special_ids)

    def added_ids(self) -> Iterable[int]:
        return list(self._backend.added_tokens_decoder)

    def decoder_config(self) -> Mapping[str, Any] | None:
        """None: these tokenizers do not describe their decoder."""
        return None


def _truncated(encoding: tokenizers.Encoding, truncation: PairTruncation) -> tuple[list[int], list[int]]:
    ids, types = encoding.ids, encoding.type_ids
    if len(ids) <= truncation.min_limit:
        return ids, types
    sequence_ids = encoding.sequence_ids  # 0 or 1; None for special tokens
    counts = sequence_ids.count(0), sequence_ids.count(1)
    num_kept = truncation.split(*counts, len(sequence_ids) - sum(counts))
    kept = [truncation.kept_range(count, share) for count, share in zip(counts, num_kept, strict=True)]
    positions = itertools.count(), itertools.count()
    indices = [i for i, text in enumerate(sequence_ids) if text is None or next(positions[text]) in kept[text]]
    return [ids[i] for i in indices], [types[i] for i in indices]


def load_backend(
    folder: Path, files: TokenizerFiles, mode: str = "auto", trust_remote_code: bool = False
) -> tuple[TokenizerBackend, dict[str, str] | None]:
    """The back end for a folder, and the special tokens that it found itself (None = use those of `files`).

    mode, trust_remote_code: as for `Tokenizer.load`. Code of the folder runs only if the folder has a tokenizer class.
    Raises CheckpointError.
    """
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder} to load a tokenizer from.")
    if mode == "mistral":
        from quire.text.tokenizer.mistral import load_mistral

        mistral = load_mistral(folder)
        return mistral, mistral.special_tokens()
    path = folder / "tokenizer.json"
    if path.is_file() and mode == "auto" and not (trust_remote_code and files.has_code):
        return FastBackend(_read_tokenizer_json(path, files)), None
    return _load_with_transformers(folder, files, mode == "slow", trust_remote_code)


def _read_tokenizer_json(path: Path, files: TokenizerFiles) -> tokenizers.Tokenizer:
    import tokenizers

    check_file_size(path)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}.") from error
    check_costs(backend, path)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = files.split_special_tokens
    _add_tokens(backend, files)
    return _with_lower_case(backend) if files.lower_case else backend


def _with_lower_case(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make the tokenizer lower texts before all its other normalizers, but after it has found special tokens."""
    from tokenizers.normalizers import Lowercase, Sequence as NormalizerSequence

    normalizers = [Lowercase(), backend.normalizer] if backend.normalizer is not None else [Lowercase()]
    backend.normalizer = NormalizerSequence(normalizers)  # type: ignore[assignment]
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Add the tokens that the config files list and tokenizer.json lacks."""
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


def _load_with_transformers(
    folder: Path, files: TokenizerFiles, slow: bool, trust_remote_code: bool
) -> tuple[TokenizerBackend, dict[str, str]]:
    has_vocabulary = any((folder / name).is_file() for name in VOCABULARIES)
    if not has_vocabulary and not (folder / "tokenizer_config.json").is_file():
        raise no_tokenizer_error(folder)
    if files.has_code and not trust_remote_code:
        raise CheckpointError(
            f"The tokenizer in {folder} is Python code that comes with the checkpoint. If you trust that code, run it"
            " with --trust-remote-code; otherwise name another folder with --tokenizer."
        )
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(
            str(folder), use_fast=not slow, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # each tokenizer class fails in its own way
        if not has_vocabulary:
            raise no_tokenizer_error(folder) from error
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"The tokenizer in {folder} cannot be loaded: {reason}") from error
    if not has_vocabulary and len(backend) <= len(set(backend.all_special_ids)):
        # some classes build an empty tokenizer from settings alone; byte tokenizers have a vocabulary without files
        raise no_tokenizer_error(folder)
    named = {name: getattr(backend, name) for name in NAMED_TOKENS}
    special = {name: str(text) for name, text in named.items() if text is not None}
    if slow and backend.is_fast:
        log.warning(
            "--tokenizer-mode slow: transformers has no tokenizer in Python for %s; it uses the fast one", folder
        )
    if backend.is_fast:
        fast = backend.backend_tokenizer
        return FastBackend(_with_lower_case(fast) if files.lower_case else fast), special
    return SlowBackend(backend, files.lower_case), special
