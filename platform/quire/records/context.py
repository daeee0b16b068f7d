"""What a plugin's `build` may know, and the version of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.isolation import CallsApart, CallsHere

CONTRACT_VERSION = (1, 0)
"""Major changes break plugins, minor ones only add. A plugin may set `quire_contract = (1, 0)`."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a `build` may know: the plugin's own options, and what its kind needs (else None).

    options: values of the plugin's `Option`s by name. vocab: token strings by id. tokenizer:
    the text side's tokenizer. device: "cpu", "cuda:0". model: name of the base model. config, folder: the
    model's config.json as it is, and where it lies. names: the architecture's table of tensor names.
    max_seats, max_rank: for adapter runtimes: seats to make, and the largest rank to take in. apart: for adapter
    runtimes: calls the functions that read files, in a process of their own.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    vocab_size: int | None = None
    tokenizer: Any = None
    device: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    names: Any = None
    max_seats: int = 8
    max_rank: int = 64
    apart: CallsApart = field(default_factory=CallsHere)
