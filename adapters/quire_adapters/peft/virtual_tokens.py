"""Reads adapters of virtual tokens: adapter_config.json, and the one tensor that PEFT saves, `prompt_embeddings`.

PEFT saves what its encoder computes (an MLP, an LSTM, a projection of prefixes), not the encoder:

    prompt tuning, P-tuning  [tokens, width of an embedding]
    prefix tuning            [tokens, 2 · layers · heads · head_dim]: for each layer the key, then the value
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quire import files
from quire.errors import BadRequest
from quire.isolation.plugin_calls import Shared
from quire_adapters.peft import tensor_files
from quire_adapters.peft.config import FILE, MAX_BYTES

PREFIX_TUNING = "PREFIX_TUNING"
KINDS = frozenset({"PROMPT_TUNING", "P_TUNING", PREFIX_TUNING})
TENSOR = "prompt_embeddings"
MAX_TOKENS = 2048
"""Virtual tokens that an adapter may have; trained ones have 8 to 200."""


class VirtualTokensShape(NamedTuple):
    """What a model takes. width: of an embedding. layers, heads, head_dim: of keys and values. no_rows: why it does not
    support prompt tuning and P-tuning; no_keys: why not prefix tuning.
    """

    width: int
    layers: int
    heads: int
    head_dim: int
    no_rows: str | None = None
    no_keys: str | None = None

    def row(self, is_prefix: bool) -> int:
        """Numbers of each token."""
        return 2 * self.layers * self.heads * self.head_dim if is_prefix else self.width


def read(folder: str, shape: Sequence[Any]) -> Shared:
    """An object of is_prefix (it is prefix tuning) and tensors (as `tensor_files.read` returns them), with the memory
    of the tensors. shape: fields of `VirtualTokensShape`. Runs in an isolated process.

    Raises BadRequest for a malformed adapter, and for one of another model.
    """
    takes = VirtualTokensShape(*shape)
    try:
        config = files.read_json(Path(folder) / FILE, MAX_BYTES)
    except files.FileRefused as error:
        raise BadRequest(f"{FILE} cannot be used: {error}.", "lora_path") from error
    if not isinstance(config, dict):
        raise BadRequest(f"{FILE} must be a JSON object.", "lora_path")
    count = check_config(config, takes)
    is_prefix = config.get("peft_type") == PREFIX_TUNING
    found = tensor_files.read(folder, 8 * count * takes.row(is_prefix) + (1 << 20), 16)
    check_tensors([(name, shape) for name, _, shape, _ in found.value], count, takes, is_prefix)
    return Shared({"is_prefix": is_prefix, "tensors": found.value}, found.memory)


def check_config(config: Mapping[str, Any], takes: VirtualTokensShape) -> int:
    """The number of virtual tokens. Raises BadRequest for a setting that is wrong, or is another model's."""
    is_prefix = config.get("peft_type") == PREFIX_TUNING
    refused = takes.no_keys if is_prefix else takes.no_rows
    if refused:
        kind = "prefix tuning" if is_prefix else "prompt tuning"
        raise BadRequest(f"This model does not support adapters of {kind}, because {refused}.", "lora_path")
    count = config.get("num_virtual_tokens")
    if type(count) is not int or not 1 <= count <= MAX_TOKENS:
        raise BadRequest(
            f"{FILE}: `num_virtual_tokens` must be a whole number from 1 to {MAX_TOKENS}, not {count!r:.40}.",
            "lora_path",
        )
    if config.get("num_transformer_submodules") not in (None, 1):
        raise BadRequest(
            f"{FILE}: `num_transformer_submodules` must be 1, because virtual tokens of encoder-decoders are not "
            "supported.",
            "lora_path",
        )
    if is_prefix:
        expected = {"num_layers": takes.layers, "num_attention_heads": takes.heads}
        for name, value in expected.items():
            if config.get(name) not in (None, value):
                raise BadRequest(
                    f"{FILE}: `{name}` is {config[name]!r:.40}; for keys and values of this model it is {value}.",
                    "lora_path",
                )
    return count


def check_tensors(
    tensors: Sequence[tuple[str, Sequence[int]]], count: int, takes: VirtualTokensShape, is_prefix: bool
) -> None:
    """Raise BadRequest unless there is one tensor (name, shape) of the expected shape."""
    expected = [count, takes.row(is_prefix)]
    for name, shape in tensors:
        if name != TENSOR:
            raise BadRequest(
                f"`{name:.200}` cannot be used: an adapter of virtual tokens can have nothing but `{TENSOR}`.",
                "lora_path",
            )
        if list(shape) != expected:
            layers = f" (keys and values of {takes.layers} layers)" if is_prefix else " (embeddings)"
            raise BadRequest(
                f"`{name}` has shape {list(shape)}; for this model it must be {expected}{layers}.", "lora_path"
            )
    if not tensors:
        raise BadRequest(f"The adapter has no tensor `{TENSOR}`.", "lora_path")
