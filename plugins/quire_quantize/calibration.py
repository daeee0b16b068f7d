"""Runs a model on calibration texts, block by block, and collects what the methods need of each projection's inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quire.engine.loading.op_choice import choose_ops, needed_ops, op_query
from quire.errors import CheckpointError, ConfigError
from quire.records import Registry
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.loading.mapping import CheckpointLoader, parameter_slices
from quire_models.model_part import ModelPart
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.projection import Projection
from quire_models.parts.attention import attention_options
from quire_models.parts.decoder import Decoder
from quire_models.step.kv_cache import KVCache
from quire_models.testing import ChunkSpec, ModelDriver
from quire_quantize.plan import Matrix, QuantizationPlan

BATCH_TOKENS = 4096
"""Tokens that are computed at a time."""

MAX_BYTES = 256 << 20
"""Maximum size of a file of calibration texts."""


def read_samples(file: Path, tokenizer: Tokenizer, samples: int, max_length: int) -> list[list[int]]:
    """Token ids of at most `samples` samples of at most `max_length` tokens each.

    A .jsonl file has a JSON object with `text` in each line; of each, the first tokens are taken. Any other file is one
    text, cut into samples that are spread over it evenly. Raises ConfigError for a file that cannot be used.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"--calibration {file}: larger than {MAX_BYTES >> 20} MiB.")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--calibration {file} cannot be read: {error}.") from error
    if file.suffix == ".jsonl":
        lines = [line for line in text.splitlines() if line.strip()][:samples]
        found = [tokenizer.encode_long(each)[:max_length] for each in _texts(lines, file)]
    else:
        ids = tokenizer.encode_long(text)
        parts = [ids[start : start + max_length] for start in range(0, len(ids), max_length)]
        step = max(1, len(parts) // samples)
        found = parts[::step][:samples]
    found = [ids for ids in found if len(ids) > 1]
    if not found:
        raise ConfigError(f"--calibration {file}: it has no text.")
    return found


def _texts(lines: Sequence[str], file: Path) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise ConfigError(f"--calibration {file}: line {number} is no JSON object with a `text`.")
        yield text


class BlockRunner:
    """A model in memory, and the inputs of its next block for all samples.

    advance(i) computes the inputs of block i + 1, with the weights that block i has then.
    """

    def __init__(self, model: DecoderModel, decoder: ModelPart, samples: Sequence[Sequence[int]]) -> None:
        self._model, self._decoder = model, decoder
        self._slices = parameter_slices(model)
        self._states: list[tuple[Tensor, Any]] = []
        with torch.inference_mode():
            for batch in _batches(samples):
                driver = ModelDriver(model, decoder, batch)
                driver.kv = _shared_cache(decoder, driver.kv)
                fwd = driver.forward([ChunkSpec(i, len(ids)) for i, ids in enumerate(batch)])
                self._states.append((model.embed_tokens(fwd), fwd))

    @property
    def num_blocks(self) -> int:
        return len(self._model.blocks)

    def block(self, index: int) -> nn.Module:
        """The module of a block."""
        return self._model.blocks[index]

    def grams(self, index: int) -> dict[str, Tensor]:
        """xᵀx over the inputs of each projection of a block, float32 [inputs, inputs], by its path in the model."""
        found: dict[str, Tensor] = {}
        with ExitStack() as stack:
            for name, module in self.block(index).named_modules():
                if isinstance(module, Projection):
                    found[f"blocks.{index}.{name}"] = gram = torch.zeros(module.inputs, module.inputs)
                    stack.enter_context(_recorded(module, gram))
            self._run(index)
        if not all(bool(gram.isfinite().all()) for gram in found.values()):
            raise CheckpointError(f"Block {index} has activations that are not finite; use --method search.")
        return found

    def advance(self, index: int) -> None:
        """Replace the inputs of a block by its outputs."""
        self._states = [(y, fwd) for y, (_, fwd) in zip(self._run(index), self._states, strict=True)]

    @torch.inference_mode()
    def _run(self, index: int) -> list[Tensor]:
        block = self.block(index)
        return [block(x.clone(), fwd) for x, fwd in self._states]  # blocks may overwrite their input

    def put(self, matrix: Matrix, weight: Tensor) -> None:
        """Replace a matrix, given as the checkpoint stores it, in the model."""
        ordered = weight if matrix.order is None else weight[matrix.order]
        module = self._model.get_submodule(matrix.path)
        assert isinstance(module, Projection)
        module.weight.data[matrix.slice_.index] = ordered.to(module.weight.dtype)
        module.process_weights()

    def divide_norm(self, path: str, factors: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Divide the result of a norm by factors [width]; yields its changed parameters by their names in Quire."""
        norm: Any = self._model.get_submodule(path)
        offset = float(norm.part.offset)
        changed = {"weight": (norm.weight.float() + offset) / factors - offset}
        if getattr(norm, "bias", None) is not None:
            changed["bias"] = norm.bias.float() / factors
        for name, value in changed.items():
            getattr(norm, name).data.copy_(value)
            yield f"{path}.{name}", value
        norm.process_weights()

    def up_rows(self, matrix: Matrix) -> slice | None:
        """The rows of a matrix of a gated MLP that are multiplied by the gate; None if it is the gate itself."""
        module = self._model.get_submodule(matrix.path)
        assert isinstance(module, Projection)
        up, index = module.slices["up"], matrix.slice_.index
        if not index:  # one tensor for gate and up
            return up
        return slice(None) if index[0] == up else None


@contextmanager
def _recorded(module: Projection, gram: Tensor) -> Iterator[None]:
    """Add xᵀx of all inputs of a projection to `gram` while the context is open."""
    multiply: Callable[..., Tensor] = module.multiply

    def record(x: Tensor, float32: bool = False) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        gram.addmm_(rows.T, rows)
        return multiply(x, float32)

    module.multiply = record
    try:
        yield
    finally:
        module.multiply = multiply


def _batches(samples: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for ids in samples:
        if batch and sum(map(len, batch)) + len(ids) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch


def _shared_cache(decoder: ModelPart, cache: KVCache) -> KVCache:
    """A cache whose blocks of equal shape share their memory: a block reads only what it wrote in the same step."""
    first = {shape: index for index, shape in reversed(list(enumerate(decoder.kv_shapes)))}
    use = [first[shape] for shape in decoder.kv_shapes]
    return KVCache(tuple(cache.k[i] for i in use), tuple(cache.v[i] for i in use), cache.page_size)


def load_model(plan: QuantizationPlan, registry: Registry) -> DecoderModel:
    """The model of a plan without towers and heads for pooling, in the dtype of its first matrix.

    Raises CheckpointError if it has no blocks that can be run one by one, and for weights that do not fit.
    """
    decoder, dtype = plan.decoder, plan.files.read(plan.matrices[0].name).dtype
    needs_more = not isinstance(decoder, Decoder) or any(hasattr(block, "cross") for block in decoder.blocks)
    if needs_more or any(decoder.state_shapes):
        raise CheckpointError(
            f"{plan.folder}: methods with calibration are for decoders without state; use --method search."
        )
    query = op_query(
        torch.device("cpu"),
        dtype,
        page_size=16,
        head_dims=tuple({shape.head_dim for shape in decoder.kv_shapes}),
        needs=needed_ops(plan.architecture.needs_ops, decoder),
        attention_options=attention_options(decoder.blocks),
    )
    model = decoder.build(ModuleBuilder(choose_ops(query, registry), dtype, torch.device("cpu")))
    loader, slices = CheckpointLoader(model, decoder, plan.names), parameter_slices(model)
    for name in plan.files:
        if loader.needs(name) and plan.names.rename(name) in slices:
            tensor = plan.files.read(name)
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(f"Tensor {name!r} cannot be quantized: a weight is not finite.")
            loader.put(name, tensor)
    loader.finish()
    return model
