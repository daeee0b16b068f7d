"""Fills a built model with the weights of a folder, tensor by tensor, and refuses a checkpoint that does not fit.

`check` compares names and shapes before a byte is read, and works on a model on the meta device, so that
a wrong config.json is found out before memory is allocated. It knows no file format.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_models import tensors
from quire_models.mapping import Filling, places, prepare

if TYPE_CHECKING:
    from quire_models.names import Names
    from quire_models.parts import Decoder
    from quire_models.tensors import TensorFiles

log = logging.getLogger(__name__)

NAMED = 5
"""How many of several problems an error names."""

REPORT_EVERY_S = 5.0
"""Loading that takes longer than this is reported in the log, and again each time it has passed."""


class Progress:
    """Logs how much of the weights has been loaded. total: numbers, in all tensors. clock: seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock, self._done, self._reported = total, clock, 0, clock()

    def advance(self, count: int) -> None:
        """`count` more numbers are in place."""
        self._done += count
        if self._clock() - self._reported >= REPORT_EVERY_S and self._done < self._total:
            self._reported = self._clock()
            log.info("loading weights: %d %% of %.2f B parameters", 100 * self._done // self._total, self._total / 1e9)


def load(model: nn.Module, decoder: Decoder, names: Names, folder: Path, load_format: str = "auto") -> None:
    """Copy the folder's weights into `model`, converted to the dtype and device of its parameters.

    At most one tensor is in memory beside the model: files are mapped and read in their own order.
    `load_format` dummy reads nothing and makes the same random weights each time.
    Raises CheckpointError for a tensor that is missing, extra or misshapen, and for unreadable files.
    """
    if load_format == "dummy":
        randomise(model)
        return
    files = tensors.find(folder, load_format)
    check(model, decoder, names, files)
    filling = Filling(model, decoder, names)
    wanted = [name for name in files if filling.wants(name)]
    progress = Progress(sum(math.prod(files[name]) for name in wanted))
    for name in wanted:
        filling.put(name, files.read(name))
        progress.advance(math.prod(files[name]))
    filling.finish()


def check(model: nn.Module, decoder: Decoder, names: Names, files: TensorFiles) -> None:
    """Raise CheckpointError unless the tensors of `files` are exactly those the model needs, in their shapes."""
    filling = Filling(model, decoder, names)
    found = places(model)
    filled: Counter[str] = Counter()
    present: set[str] = set()
    problems: list[str] = []
    for name in filter(filling.wants, files):
        try:
            view, ours = filling.target(name)
        except CheckpointError as error:
            problems.append(error.message)
            continue
        filled[found[ours].parameter] += view.numel()
        present.add(ours)
        shape = _stored_shape(files[name], decoder, names, ours)
        if shape != view.shape:
            problems.append(f"Tensor {name!r} has shape {list(shape)}; by config.json it should be {list(view.shape)}.")
    for place, view in filling.left_out(present):
        filled[place.parameter] += view.numel()
    for parameter, tensor in model.named_parameters():
        if filled[parameter] < tensor.numel():
            pieces = [o for o, place in found.items() if place.parameter == parameter and place.index]
            absent = [o for o in pieces if o not in present and not names.may_lack(o)] if filled[parameter] else []
            problems += [f"The checkpoint lacks {_theirs(names, ours)}." for ours in absent or [parameter]]
    if problems:
        more = f" And {len(problems) - NAMED} more of the kind." if len(problems) > NAMED else ""
        raise CheckpointError(" ".join(problems[:NAMED]) + more)


def _stored_shape(shape: tuple[int, ...], decoder: Decoder, names: Names, ours: str) -> tuple[int, ...]:
    transform = names.transform(ours)
    if transform is None:
        return shape
    try:
        return tuple(transform(torch.empty(shape, device="meta"), decoder).shape)
    except (RuntimeError, ValueError, IndexError):  # the transform expects another number of dimensions
        return shape


def _theirs(names: Names, ours: str) -> str:
    """What the checkpoint would call our `ours`: the table read backwards, if that gives one that fits."""
    back = {o: t for t, o in names.renames}  # a family's own names come last, and win
    longest_first = sorted(back, key=len, reverse=True)
    pattern = re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, longest_first))})(?![^.])")
    name = pattern.sub(lambda match: back[match.group()], ours) if back else ours
    return f"{name!r}" if names.rename(name) == ours else f"a tensor for {ours!r}"


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Random weights of plausible size, the same on every device: matrices 1/√(inputs), norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random(name, parameter.shape, generator))
    prepare(model)


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if len(shape) > 1:
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
    if name.endswith("bias"):
        return torch.randn(shape, generator=generator) * 0.02
    return torch.rand(shape, generator=generator) * 0.2 + 0.9
