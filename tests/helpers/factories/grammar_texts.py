"""Whether the grammar that a back end makes of a constraint takes a text."""

from quire.records import Context
from quire_plugins.structured.llguidance_grammars import quire_grammar_backends


def compiled(structured, tokenizer, backends=quire_grammar_backends):
    """The grammar of a constraint, by the back end of a plugin that has one."""
    (backend,) = backends()
    built = backend.build(Context(options={}, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer))
    if not backend.isolated:
        return built.compile(structured)
    assert built.needs_process(structured)
    return built.load(built.compile_in_worker(structured))


def keeps_to(grammar, tokenizer, text):
    """Whether a grammar takes a text as a whole one."""
    matcher = grammar.start()
    return all(map(matcher.accept, tokenizer.encode(text, add_special_tokens=False))) and matcher.is_accepting
