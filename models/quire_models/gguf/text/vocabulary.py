"""The tokens of a GGUF model: their texts, types and scores, and which of them have a special role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quire_models.gguf.file.metadata import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens (`tokenizer.ggml.token_type`)."""

ROLES = {
    "bos_token": ("bos",),
    "eos_token": ("eos",),
    "unk_token": ("unknown",),
    "sep_token": ("seperator", "separator"),
    "pad_token": ("padding",),
    "cls_token": ("cls",),
    "mask_token": ("mask",),
}
"""Name in tokenizer_config.json, and in keys `tokenizer.ggml.…_token_id` (one of which llama.cpp misspells)."""

END_OF_TURN = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>")
)
"""Control tokens that end an answer whatever the file says, as in llama.cpp."""

_FILLER = re.compile(r"\[PAD\d+\]")
"""How the converter names ids of the embedding table that are no tokens."""


@dataclass(frozen=True)
class Vocabulary:
    """tokens: texts by id. types: by id. scores: by id; None if the model has none. roles: id by name (`ROLES`)."""

    metadata: Metadata
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None
    roles: Mapping[str, int]

    @classmethod
    def read(cls, metadata: Metadata) -> Vocabulary:
        """Raises CheckpointError for arrays of different lengths, types that are unknown, and ids without a token."""
        tokens = metadata.texts("tokenizer.ggml.tokens")
        if not tokens:
            raise metadata.error("tokenizer.ggml.tokens", "is missing: the file has no tokenizer")
        roles = {}
        for role, names in ROLES.items():
            found = [f"tokenizer.ggml.{name}_token_id" for name in names]
            for key in (key for key in found if key in metadata):
                if metadata.get(key) == -1:  # stated to be absent
                    continue
                roles[role] = metadata.size(key)
                if roles[role] >= len(tokens):
                    raise metadata.error(key, f"is {roles[role]}, and there are {len(tokens)} tokens")
        types = metadata.numbers("tokenizer.ggml.token_type")
        scores = metadata.numbers("tokenizer.ggml.scores")
        for key, values in (("token_type", types), ("scores", scores)):
            if values is not None and len(values) != len(tokens):
                raise metadata.error(f"tokenizer.ggml.{key}", f"has {len(values)} elements for {len(tokens)} tokens")
        if types is None:
            special = set(roles.values())
            types = [CONTROL if token in special else NORMAL for token in range(len(tokens))]
        if not set(types) <= {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE}:
            raise metadata.error("tokenizer.ggml.token_type", "has an element that is no type of token (1 to 6)")
        return cls(metadata, tokens, [int(kind) for kind in types], scores, roles)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id by text, of the first token with a text; fillers are left out."""
        found: dict[str, int] = {}
        for index, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if not (kind == UNUSED and _FILLER.fullmatch(text)):
                found.setdefault(text, index)
        return found

    @property
    def kind(self) -> str:
        """`tokenizer.ggml.model`: "llama", "gpt2", "bert", "t5"."""
        return self.metadata.text("tokenizer.ggml.model") or ""

    def text(self, role: str) -> str | None:
        """The text of the token with a role; None without one."""
        token = self.roles.get(role)
        return None if token is None else self.tokens[token]

    def added_tokens(self) -> list[dict[str, Any]]:
        """`added_tokens` of tokenizer.json: tokens that are matched in the text before anything else.

        Control tokens and the token for unknown text are special: they are left out of decoded text.
        """
        added = []
        matched = () if self.kind == "bert" else (USER_DEFINED,)  # in WordPiece they are words like others
        for text, index in self.ids.items():
            kind = self.types[index]
            if kind in (CONTROL, UNKNOWN, *matched) and text:
                flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                added.append({"id": index, "content": text, **flags, "special": kind != USER_DEFINED})
        return added

    def end_ids(self) -> list[int]:
        """Ids that end an answer: the end of text, of a turn, and of a message."""
        ends = dict.fromkeys([self.roles["eos_token"]] if "eos_token" in self.roles else [])
        for name in ("eot", "eom"):
            key = f"tokenizer.ggml.{name}_token_id"
            if key in self.metadata and self.metadata.size(key) < len(self.tokens):
                ends[self.metadata.size(key)] = None
        for text in sorted(END_OF_TURN):
            index = self.ids.get(text)
            if index is not None and self.types[index] in (CONTROL, USER_DEFINED):
                ends[index] = None
        return list(ends)
