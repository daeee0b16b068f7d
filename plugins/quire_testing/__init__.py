"""Conformance checks for authors of plugins, one for each kind of record, and tiny models to run them on.

A check takes a record and a few examples, and raises AssertionError with a sentence that says which rule of the
contract is broken:

    check_architecture      logits equal those of transformers, and do not depend on chunks or on other sequences
    check_architecture_fallback  models of other architectures are described, or refused with a sentence
    check_input_mapper      a media item becomes as many ids as its tower returns rows
    check_transcriber       prompts, parameters and segments are valid for every task
    check_op                an operation equals the reference over shapes and dtypes
    check_quantization      products are close to those of the unquantized matrix, row by row
    check_checkpoint_format a quantized checkpoint is read into its weights, and a damaged one refused
    check_logits_processor  a processor changes only its own rows, however rows are batched
    check_grammar_backend   mask and `accept` agree, and `rollback` undoes `accept`
    check_scheduler_policy  no sequence starves under a bounded load
    check_routing_policy    a candidate is chosen each time, and unlike requests are spread
    check_executor          programs start, reach the first rank, and are ended at once
    check_drafter           drafts are within bounds, depend on the sequence alone, and leave no state behind
    check_adapter_runtime   adapters change only the rows that use them, in any slot
    check_adapter_source    names resolve to adapter folders, and never to paths outside
    check_tool_parser       the same calls are found however the text is split
    check_reasoning_parser  the same reasoning is found however the text is split
    check_request_gate      requests are passed or refused in the right form, from several threads
    check_router            routes mount and describe themselves, and answer without a server error
    check_metrics_exporter  statistics of any model are accepted
    check_kv_event_publisher  events of every kind are sent from one thread, and `close` returns
    check_kv_store            a blob comes back as it was put or not at all, from several threads
    check_command           arguments parse, and `run` returns an exit status
    check_option            the default fits the type, also as text from a flag
    check_demo_model        the folder holds a complete model, and complete adapters

`tiny_model`, `tiny_llama` and `byte_tokenizer` write small random models without a download. The checks run on the CPU
unless they are given a device, and need no network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire_testing.adapters import (
        check_adapter_runtime as check_adapter_runtime,
        check_adapter_source as check_adapter_source,
    )
    from quire_testing.architecture import check_architecture as check_architecture
    from quire_testing.architecture_fallback import check_architecture_fallback as check_architecture_fallback
    from quire_testing.cli import (
        check_command as check_command,
        check_demo_model as check_demo_model,
        check_option as check_option,
    )
    from quire_testing.drafter import check_drafter as check_drafter
    from quire_testing.grammar_backend import check_grammar_backend as check_grammar_backend
    from quire_testing.input_mapper import check_input_mapper as check_input_mapper
    from quire_testing.logits_processor import check_logits_processor as check_logits_processor
    from quire_testing.ops.check import check_op as check_op
    from quire_testing.ops.checkpoint_format import check_checkpoint_format as check_checkpoint_format
    from quire_testing.ops.quantization import check_quantization as check_quantization
    from quire_testing.parsers import (
        check_reasoning_parser as check_reasoning_parser,
        check_tool_parser as check_tool_parser,
    )
    from quire_testing.replicas.executor import check_executor as check_executor
    from quire_testing.replicas.kv_events import check_kv_event_publisher as check_kv_event_publisher
    from quire_testing.replicas.kv_stores import check_kv_store as check_kv_store
    from quire_testing.replicas.routing import check_routing_policy as check_routing_policy
    from quire_testing.scheduler_policy import check_scheduler_policy as check_scheduler_policy
    from quire_testing.server import (
        check_metrics_exporter as check_metrics_exporter,
        check_request_gate as check_request_gate,
        check_router as check_router,
    )
    from quire_testing.tiny import byte_tokenizer as byte_tokenizer, tiny_llama as tiny_llama, tiny_model as tiny_model
    from quire_testing.transcriber import check_transcriber as check_transcriber

_HOME = {
    "byte_tokenizer": "tiny",
    "check_adapter_runtime": "adapters",
    "check_adapter_source": "adapters",
    "check_architecture": "architecture",
    "check_architecture_fallback": "architecture_fallback",
    "check_checkpoint_format": "ops.checkpoint_format",
    "check_command": "cli",
    "check_demo_model": "cli",
    "check_drafter": "drafter",
    "check_executor": "replicas.executor",
    "check_grammar_backend": "grammar_backend",
    "check_input_mapper": "input_mapper",
    "check_kv_event_publisher": "replicas.kv_events",
    "check_kv_store": "replicas.kv_stores",
    "check_logits_processor": "logits_processor",
    "check_metrics_exporter": "server",
    "check_op": "ops.check",
    "check_option": "cli",
    "check_quantization": "ops.quantization",
    "check_reasoning_parser": "parsers",
    "check_request_gate": "server",
    "check_router": "server",
    "check_routing_policy": "replicas.routing",
    "check_scheduler_policy": "scheduler_policy",
    "check_tool_parser": "parsers",
    "check_transcriber": "transcriber",
    "tiny_llama": "tiny",
    "tiny_model": "tiny",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a check when it is first used, so that it needs only the libraries of its own kind of record."""
    if name not in _HOME:
        raise AttributeError(f"module 'quire_testing' has no attribute {name!r}")
    return getattr(import_module(f"quire_testing.{_HOME[name]}"), name)
