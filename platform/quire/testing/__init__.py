"""For authors of plugins: one conformance check per kind of record, and tiny models to try things on.

Every check raises AssertionError with a sentence that says which rule of the contract was broken:

    check_architecture   logits equal transformers', and don't depend on chunking or neighbours
    check_op             an operation equals the reference over shapes and data types
    check_processor      a logits processor touches its own rows only, however rows are grouped
    check_grammar        a matcher's mask and its `accept` agree, and `rollback` undoes `accept`
    check_policy         a scheduling policy starves nobody under a bounded load
    check_parser         a tool parser finds the same calls however the text is cut into pieces
    check_mapper         a medium becomes as many ids as its tower returns rows

Needs transformers and torch; no network, no device but the CPU unless told otherwise.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.testing.architecture import check_architecture as check_architecture
    from quire.testing.grammar import check_grammar as check_grammar
    from quire.testing.media import check_mapper as check_mapper
    from quire.testing.ops import check_op as check_op
    from quire.testing.policy import check_policy as check_policy
    from quire.testing.processor import check_processor as check_processor
    from quire.testing.text import check_parser as check_parser
    from quire.testing.tiny import byte_tokenizer as byte_tokenizer, tiny_llama as tiny_llama, tiny_model as tiny_model

_HOME = {
    "byte_tokenizer": "tiny",
    "check_architecture": "architecture",
    "check_grammar": "grammar",
    "check_mapper": "media",
    "check_op": "ops",
    "check_parser": "text",
    "check_policy": "policy",
    "check_processor": "processor",
    "tiny_llama": "tiny",
    "tiny_model": "tiny",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a check when it is first used: one kind of plugin doesn't need the libraries of another."""
    if name not in _HOME:
        raise AttributeError(f"module 'quire.testing' has no attribute {name!r}")
    return getattr(import_module(f"quire.testing.{_HOME[name]}"), name)
