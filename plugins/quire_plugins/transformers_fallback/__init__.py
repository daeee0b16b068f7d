"""Any other model that transformers has, over Quire's pages: the fallback for architectures without a plugin.

transformers' modules compute the model; its interfaces for attention and for experts call Quire's operations, and its
matrices are `Projection`s. Batching, the prefix cache, adapters, quantization and pooling therefore work as for an
architecture of a plugin.

    model_class     the class of a model, and its config
    tracing         runs the model without memory, to see which attention its layers ask for
    interfaces      what transformers calls in place of its attention, masks and experts
    architecture    from a model folder to an `Architecture`, or a sentence that says why not
    part            the model as the engine sees it before it is built
    model, modules, replacing    the module that it builds
    known_layers, same_code      layers that run as recorded programs
    checkpoint      tensors of the checkpoint
    state           what layers keep beside keys and values
    rotary          rotary embeddings that depend on the length of a text
    pictures        transformers' processor, and the rows of pictures
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.hooks.hookspecs import hookimpl
from quire.records import (
    Architecture,
    ArchitectureFallback,
    ArchitectureQuery,
    Context,
    InputMapper,
    InputProcessor,
)


def _find(query: ArchitectureQuery) -> Architecture:
    from quire_plugins.transformers_fallback.architecture import find

    return find(query)


@hookimpl
def quire_architecture_fallbacks() -> Iterable[ArchitectureFallback]:
    yield ArchitectureFallback("transformers", _find)


def _pictures(context: Context) -> InputProcessor:
    from quire_plugins.transformers_fallback.pictures.processing import PictureProcessor

    return PictureProcessor(context)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    yield InputMapper("transformers/image", "*", "image", _pictures)
