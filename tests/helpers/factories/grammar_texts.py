"""Whether the grammar that a back end makes of a constraint takes a text."""

import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

from quire.params.structured import StructuredSpec
from quire.records import Context, Grammar, GrammarBackend
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.structured.llguidance_grammars import quire_grammar_backends

Compile = Callable[[StructuredSpec], Grammar]


def backend_of(module: str) -> GrammarBackend:
    """The back end of a bundled plugin."""
    (found,) = import_module(f"quire_plugins.structured.{module}").quire_grammar_backends()
    return found


def compile_with(backend: GrammarBackend, tokenizer: Tokenizer, vocab_size: int) -> Compile:
    """Compiles constraints as an engine does: what a child process compiles arrives pickled."""
    built: Any = backend.build(Context(options={}, vocab_size=vocab_size, tokenizer=tokenizer))

    def compile_one(asked: StructuredSpec) -> Grammar:
        if not backend.isolated:
            return built.compile(asked)
        assert built.needs_process(asked)
        return built.load(pickle.loads(pickle.dumps(built.compile_in_worker(asked))))

    return compile_one


def compiled(structured, tokenizer, backends=quire_grammar_backends):
    """The grammar of a constraint, by the back end of a plugin that has one."""
    (backend,) = backends()
    return compile_with(backend, tokenizer, tokenizer.vocab_size)(structured)


def keeps_to(grammar, tokenizer, text):
    """Whether a grammar takes a text as a whole one."""
    matcher = grammar.start()
    return all(map(matcher.accept, tokenizer.encode(text, add_special_tokens=False))) and matcher.is_accepting
