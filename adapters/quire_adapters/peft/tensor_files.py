"""Reads the tensors of an adapter's folder into shared memory, in one copy, since the file may change meanwhile.

Formats: adapter_model.safetensors, else adapter_model.bin (torch's format, weights only). `read` runs in an isolated
process. `tensors_of` makes tensors from its result and relies only on numbers that were checked.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quire import files
from quire.errors import BadRequest
from quire.isolation.plugin_calls import Shared, SharedBytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SAFETENSORS, TORCH = "adapter_model.safetensors", "adapter_model.bin"
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes per number, by safetensors' name of the dtype."""

MAX_HEADER = 100 << 20
"""Limit of the header in bytes, the same as in safetensors."""

MAX_DIMENSIONS = 8
MAX_NUMBER = 1 << 48
"""Largest number in a shape or an offset: no file has more bytes."""

MAX_NAME = 512


class TensorSpan(NamedTuple):
    """A tensor in shared memory. dtype: a key of `SIZES`. start: offset in bytes."""

    name: str
    dtype: str
    shape: Sequence[int]
    start: int


def read(folder: str, max_bytes: int, max_tensors: int) -> Shared:
    """The tensors of an adapter's folder, all of floating point: a list of `TensorSpan`s, and the memory with the data.

    max_bytes: limit of the file. Raises BadRequest if the file is missing, too large, truncated, corrupt, or contains
    anything but tensors.
    """
    for name, parse in ((SAFETENSORS, _safetensors), (TORCH, _torch)):
        try:
            with files.open_regular(Path(folder) / name) as descriptor:
                size = os.fstat(descriptor).st_size
                if size > max_bytes:
                    limit = f"an adapter of this model has at most {max_bytes} by --max-lora-rank"
                    raise files.FileRefused(f"it has {size} bytes; {limit}")
                found = parse(descriptor, size, max_bytes, max_tensors)
        except files.FileRefused as error:
            if error.missing:
                continue
            raise BadRequest(f"{name} cannot be used: {error}.", "lora_path") from error
        except OSError as error:
            raise BadRequest(f"{name} cannot be read ({error.strerror}).", "lora_path") from error
        return found
    raise BadRequest(f"The adapter has no tensors: {SAFETENSORS} (or {TORCH}) was expected.", "lora_path")


def tensors_of(spans: Sequence[Sequence[Any]], memory: SharedBytes) -> dict[str, Tensor]:
    """Tensors by name: views of the memory, which is freed with the last of them. Raises OSError and ValueError."""
    import torch

    dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    content, found = memory.map(), dict[str, "Tensor"]()
    for span in spans:
        name, dtype, shape, start = span
        count = math.prod(shape)
        if count:
            flat = torch.frombuffer(content, dtype=dtypes[dtype], count=count, offset=start)
            found[name] = flat.view(*shape)
        else:
            found[name] = torch.empty(*shape, dtype=dtypes[dtype])
    return found


def _check_count(count: int, max_tensors: int) -> None:
    if count > max_tensors:
        raise files.FileRefused(f"it has {count} tensors; an adapter of this model has at most {max_tensors}")


def _safetensors(descriptor: int, size: int, max_bytes: int, max_tensors: int) -> Shared:
    """Parse a safetensors file: the header's length in eight bytes, the header in JSON, and the contiguous tensors.

    The file is copied before it is parsed.
    """
    memory = SharedBytes.create()
    size = memory.copy(descriptor, size)
    spans = spans_of(memory.fileno(), size, max_tensors)
    memory.seal()
    return Shared(spans, memory)


def spans_of(descriptor: int, size: int, max_tensors: int) -> list[TensorSpan]:
    """The tensors of a safetensors file by its header, which is all that is read. size: of the file, in bytes.

    Raises FileRefused if the header is corrupt or does not fit the file's size.
    """
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8 or length > min(MAX_HEADER, size - 8):
        raise files.FileRefused("it is truncated or corrupt: its header does not fit")
    header = files.parse_json(os.pread(descriptor, length, 8))
    if not isinstance(header, dict):
        raise files.FileRefused("it is corrupt: its header is no object")
    header.pop("__metadata__", None)
    _check_count(len(header), max_tensors)
    entries = [_entry(name, given) for name, given in header.items()]
    end, spans = 0, []
    for span, stop in sorted(entries, key=lambda entry: (entry[0].start, entry[1])):
        if span.start != end or stop - span.start != math.prod(span.shape) * SIZES[span.dtype]:
            raise files.FileRefused(f"it is corrupt: {span.name!r} is not at the offset that its shape implies")
        end = stop
        if 8 + length + end > size:
            raise files.FileRefused(f"it is truncated: {span.name!r} ends after the file")
        spans.append(span._replace(start=8 + length + span.start))
    if 8 + length + end != size:
        raise files.FileRefused("it is corrupt: there is more in it than its tensors")
    return spans


def _entry(name: str, given: Any) -> tuple[TensorSpan, int]:
    """An entry of the header, and the offset of its end. Raises FileRefused if it is malformed."""
    try:
        shape, (start, stop), dtype = given["shape"], given["data_offsets"], given["dtype"]
        numbers = [*shape, start, stop]
    except (ValueError, TypeError, KeyError) as error:
        raise files.FileRefused(f"it is truncated or corrupt: its header cannot be read ({error})") from error
    if len(name) > MAX_NAME:
        raise files.FileRefused(f"it is corrupt: a name has more than {MAX_NAME} characters")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise files.FileRefused(f"it is corrupt: a shape is a list of at most {MAX_DIMENSIONS} numbers")
    if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers):
        raise files.FileRefused(f"it is corrupt: shapes and offsets are whole numbers from 0 to {MAX_NUMBER}")
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise files.FileRefused(f"tensors are of {', '.join(SIZES)}, not {dtype!r:.20}")
    return TensorSpan(name, dtype, shape, start), stop


def shapes_of(descriptor: int, size: int, max_tensors: int) -> list[TensorSpan]:
    """The tensors of a file in torch's format, without their numbers; `start` is 0. Raises FileRefused."""
    state = _unpickled(descriptor, size, "meta")
    _check_count(len(state), max_tensors)
    return [TensorSpan(name[:MAX_NAME], _dtype_name(tensor), list(tensor.shape), 0) for name, tensor in state.items()]


def _torch(descriptor: int, size: int, max_bytes: int, max_tensors: int) -> Shared:
    state = _unpickled(descriptor, size)
    _check_count(len(state), max_tensors)
    spans, memory, end = [], SharedBytes.create(), 0
    for name, tensor in state.items():
        if len(name) > MAX_NAME or tensor.dim() > MAX_DIMENSIONS:
            raise files.FileRefused("it has a tensor with a longer name or more dimensions than any adapter's")
        dtype, count = _dtype_name(tensor), tensor.numel() * tensor.element_size()
        if end + count > max_bytes:  # strides may make a few numbers look like many
            raise files.FileRefused(f"its tensors have more than {max_bytes} bytes")
        spans.append(TensorSpan(name, dtype, list(tensor.shape), end))
        if count:
            numbers: Any = tensor.contiguous().flatten().view(_bytes()).numpy()
            memory.append(memoryview(numbers))
        padding = -count % 8
        memory.append(bytes(padding))
        end += count + padding
    memory.seal()
    return Shared(spans, memory)


def _unpickled(descriptor: int, size: int, device: str = "cpu") -> Mapping[str, Tensor]:
    """device: cpu, or meta for tensors without numbers."""
    import torch

    torch.set_num_threads(1)
    try:
        with open(descriptor, "rb", closefd=False) as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    unpacked = sum(entry.file_size for entry in archive.infolist())
                if unpacked > size:
                    raise files.FileRefused("its entries are compressed")
            file.seek(0)
            state: Any = torch.load(file, map_location=device, weights_only=True)
    except (files.FileRefused, MemoryError):
        raise
    except Exception as error:  # a broken pickle can raise almost any exception
        reason = str(error).strip().splitlines() or ["empty"]
        raise files.FileRefused(f"it is truncated, corrupt, or holds more than tensors ({reason[0]:.200})") from error
    tensors = isinstance(state, Mapping) and all(
        isinstance(name, str)
        and isinstance(tensor, torch.Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == device
        and tensor.is_floating_point()
        for name, tensor in state.items()
    )
    if not tensors:
        raise files.FileRefused("it must contain a mapping from names to tensors of floating point")
    return {name: tensor.detach() for name, tensor in state.items()}


def _dtype_name(tensor: Tensor) -> str:
    import torch

    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    if tensor.dtype not in names:
        raise files.FileRefused(f"tensors are of {', '.join(SIZES)}, not {tensor.dtype}")
    return names[tensor.dtype]


def _bytes() -> torch.dtype:
    import torch

    return torch.uint8
