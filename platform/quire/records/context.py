"""The argument of every `build` of a plugin, and the version of the plugin contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.isolation.plugin_calls import InProcessCalls, SubprocessCalls

CONTRACT_VERSION = (1, 0)
"""A major change may break plugins, a minor one only adds. A plugin may set `quire_contract = (1, 0)`."""


@dataclass(frozen=True)
class Deferred:
    """A value of a field that is made when the field is read: `make` is called each time."""

    make: Callable[[], Any]


class _DeferrableField:
    """A field of a dataclass, None by default, whose value may be `Deferred`."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type) -> Any:
        value = None if instance is None else vars(instance)[self._name]
        return value.make() if isinstance(value, Deferred) else value

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a record's `build` receives: the plugin's own options, and what its kind of record needs (else None).

    options: values of the plugin's `Option`s by name. model: name of the base model. tokenizer: the `Tokenizer` of the
    text front end. device: "cpu", "cuda:0". config, folder: the model's config.json unchanged, and the model's folder.
    names: the architecture's `WeightsMapper`. vocab_size: number of token ids. max_slots: for adapter runtimes,
    the number of slots to allocate. max_rank: for adapter runtimes, the largest rank to accept. render_chat: writes a
    list of messages in the model's chat template, up to the answer; raises BadRequest; None without a template.
    in_subprocess: calls a function that reads files in a subprocess with limits on time and memory.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    vocab_size: int | None = None
    tokenizer: Any = _DeferrableField()
    device: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    names: Any = None
    max_slots: int = 8
    max_rank: int = 64
    render_chat: Callable[[Any], str] | None = None
    in_subprocess: SubprocessCalls = field(default_factory=InProcessCalls)
