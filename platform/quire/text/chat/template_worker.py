"""Renders chat templates in a confined process: hardly any environment, few files, no child processes, little memory.

The parent kills it when a job takes too long, so a template that loops, multiplies strings or escapes from jinja's
sandbox costs one small process. The file runs as a script and imports nothing of Quire. Jobs arrive on standard
input and replies leave on standard output, each as JSON behind its length.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_COMPILED = 64
LENGTH = struct.Struct(">Q")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it renders as a plain block."""

    tags = {"generation"}  # noqa: RUF012  (jinja's protocol)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block's body as a nested scope."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """`dict(...)` that does not expose the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace(...)` that rejects private names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # "self" is a legal attribute name in a template
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the name {name!r}")


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The `tojson` filter of transformers: unlike jinja's, it does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def build_environment() -> ImmutableSandboxedEnvironment:
    """A jinja environment with the globals, filters and tags that transformers gives to chat templates."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    env.globals["dict"] = _Dict()
    env.globals["namespace"] = _Namespace
    return env


@dataclass(frozen=True)
class CompiledTemplate:
    """A template and the shapes of message content that it can read: a list of parts, a string, or both."""

    template: jinja2.Template
    reads_parts: bool
    reads_strings: bool


class Compiler:
    """Compiles templates and caches the MAX_COMPILED most recently used ones."""

    def __init__(self) -> None:
        self._environment = build_environment()
        self._compiled: OrderedDict[str, CompiledTemplate] = OrderedDict()

    def get(self, source: str) -> CompiledTemplate:
        """The compiled template. Raises jinja2.TemplateSyntaxError."""
        compiled = self._compiled.get(source)
        if compiled is None:
            tree = self._environment.parse(source)
            template = self._environment.from_string(source)
            parts = _loops_over_content(tree)
            strings = not parts or any(test.name in ("string", "iterable") for test in tree.find_all(nodes.Test))
            compiled = self._compiled[source] = CompiledTemplate(template, parts, strings)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(source)
        return compiled


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template loops over the content of a message, directly or through a variable."""
    names = {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(_is_content(loop.iter, frozenset(names)) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: frozenset[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _adapt_content(content: Any, compiled: CompiledTemplate, markers: Mapping[str, str]) -> Any:
    """`content` in a shape that the template reads.

    A list of parts becomes one string, with parts joined by newlines and media as markers; a string becomes one part.
    """
    if isinstance(content, list) and not compiled.reads_parts:
        return _as_text([part for part in content if isinstance(part, Mapping)], markers)
    if isinstance(content, str) and not compiled.reads_strings:
        return [{"type": "text", "text": content}] if content else []
    return content


def _as_text(parts: list[Mapping[str, Any]], markers: Mapping[str, str]) -> str:
    """The parts as one text, with media as markers.

    If the text already holds one marker for each medium of a modality, those markers say where the media go;
    otherwise each medium is put where its part is.
    """
    text = "\n".join(str(part.get("text", "")) for part in parts if part.get("type") not in markers)
    placed = {
        kind
        for kind, marker in markers.items()
        if text.count(marker) == sum(part.get("type") == kind for part in parts)
    }
    shown = [part for part in parts if part.get("type") not in placed]
    return "\n".join(markers.get(str(part.get("type")), str(part.get("text", ""))) for part in shown)


def render(compiler: Compiler, job: Mapping[str, Any]) -> str:
    """The output of a job: `template`, `context`, `markers` and `max_chars`. Without a context it only compiles."""
    compiled = compiler.get(job["template"])
    context = job.get("context")
    if context is None:
        return ""
    for message in context.get("messages", ()):
        if "content" in message:
            message["content"] = _adapt_content(message["content"], compiled, job.get("markers", {}))
    return "".join(_limit_output(compiled.template.generate(context), job["max_chars"]))


def _limit_output(texts: Iterator[str], max_chars: int) -> Iterator[str]:
    remaining = max_chars
    for text in texts:
        remaining -= len(text)
        if remaining < 0:
            raise jinja2.TemplateError(f"it wrote more than {max_chars} characters")
        yield text


def reply_to(compiler: Compiler, job: Mapping[str, Any]) -> dict[str, str]:
    """The reply to a job: {"text": …} or {"error": a clause that describes the error}."""
    try:
        return {"text": render(compiler, job)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except jinja2.exceptions.SecurityError as error:
        return {"error": f"it tried what templates may not do: {error}"}
    except MemoryError:
        return {"error": "it used too much memory"}
    except RecursionError:
        return {"error": "it is nested or recurses too deeply"}
    except Exception as error:  # template code can raise anything
        return {"error": str(error) or type(error).__name__}


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return stream.read(length)


def frame(value: Any) -> bytes:
    """A JSON value behind its length in bytes."""
    body = json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


def _confine(memory_bytes: int) -> None:
    for limit, maximum in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        _, hard = resource.getrlimit(limit)
        value = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        with suppress(ValueError, OSError):  # macOS refuses some limits; the parent's deadline always applies
            resource.setrlimit(limit, (value, value))


def _limit_cpu(seconds: int) -> None:
    """Limit the CPU time of the next job, so that a process whose parent was killed does not loop for ever."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, hard))


def main() -> None:
    """Serve jobs until standard input ends. Arguments: memory limit in bytes, CPU time limit of a job in seconds."""
    compiler = Compiler()
    # a failing template makes jinja import more modules: do so before the process is confined
    reply_to(compiler, {"template": "{{ missing.name }}", "context": {}, "max_chars": 9})
    _confine(int(sys.argv[1]))
    sys.stdout.buffer.write(frame("ready"))
    sys.stdout.buffer.flush()
    while (body := read_frame(sys.stdin.buffer)) is not None:
        _limit_cpu(int(sys.argv[2]))
        reply = frame(reply_to(compiler, json.loads(body)))
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
