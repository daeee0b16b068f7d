"""Loads the weights of a folder into a model, tensor by tensor, and refuses a checkpoint that does not fit.

`check` compares names and shapes before any tensor is read and works with a model on the meta device, so
a wrong config.json is detected before memory is allocated.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from tqdm import tqdm

from quire.errors import CheckpointError
from quire_models.loading.mapping import CheckpointLoader, parameter_slices, process_weights
from quire_models.loading.quantized_files import prefetch
from quire_models.loading.weight_names import RowOrder

if TYPE_CHECKING:
    from quire_models.loading.quantized_files import WeightFiles
    from quire_models.loading.weight_names import WeightsMapper
    from quire_models.model_part import ModelPart

log = logging.getLogger(__name__)

MAX_NAMED = 5
"""Maximum number of problems that an error lists."""

BAR_DELAY_S = 1.0
"""A model that loads faster than that gets no bar."""

REPORT_EVERY_S = 5.0
"""Interval of the log messages about loading, in seconds."""


READ_AHEAD = 1 << 26
"""Elements of tensors that are being read from the disk while others are packed."""

OnProgress: TypeAlias = Callable[[float], None] | None
"""Gets the fraction of the weights that is loaded, after each tensor. What it raises ends the load."""


class LoadingProgress:
    """Shows the progress of loading: as a bar if stderr is a terminal, else in the log.

    total: elements of all tensors. clock: in seconds. on_progress: gets the loaded fraction after each tensor. The bar
    appears after `BAR_DELAY_S`.
    """

    def __init__(
        self,
        total: int,
        clock: Callable[[], float] = time.monotonic,
        on_progress: OnProgress = None,
    ) -> None:
        self._total, self._clock, self._done, self._reported = total, clock, 0, clock()
        self._on_progress = on_progress
        self._bar = tqdm(
            total=total,
            desc="loading weights",
            unit=" parameters",
            unit_scale=True,
            delay=BAR_DELAY_S,
            leave=False,
            file=sys.stderr,
            disable=None,
        )

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._bar.close()

    def advance(self, count: int) -> None:
        """Report `count` more loaded elements."""
        self._done += count
        self._bar.update(count)
        if self._on_progress is not None:
            self._on_progress(self._done / self._total)
        if not self._bar.disable:
            return
        if self._clock() - self._reported >= REPORT_EVERY_S and self._done < self._total:
            self._reported = self._clock()
            size = f"{self._total / 1e9:.2f} B" if self._total >= 1e9 else f"{self._total / 1e6:.1f} M"
            log.info("loading weights: %d %% of %s parameters", 100 * self._done // self._total, size)


def load(
    model: nn.Module,
    decoder: ModelPart,
    names: WeightsMapper,
    files: WeightFiles,
    on_progress: OnProgress = None,
    restore: Callable[[nn.Module], Iterable[tuple[nn.Module, int]]] = lambda _: (),
    is_checked: bool = False,
) -> None:
    """Copy the weights of `files` into `model`, converted to the dtype and device of its parameters.

    At most the parts of one matrix are in memory beside the model: files are mapped and read in their own order,
    except that vectors come first, because a matrix is packed with its bias as soon as it is complete, and then the
    largest matrices, which are in memory twice while they are packed.
    restore: yields modules in which it has put packed matrices, so that their tensors are not read, and the number of
    elements of these. is_checked: `check` has found no problem.
    Raises CheckpointError for a tensor that is missing, extra or has the wrong shape, and for unreadable files.
    """
    files = converted(names, files)
    if not is_checked:
        _check(model, decoder, names, files)
    loader = CheckpointLoader(model, decoder, names)
    progress = LoadingProgress(sum(p.numel() for p in model.parameters()), on_progress=on_progress)
    with closing(progress):
        for module, elements in restore(model):
            loader.hold(module)
            progress.advance(elements)
        sizes = {name: math.prod(files[name]) for name in filter(loader.needs, files)}
        largest = max(sizes.values(), default=0)
        ordered = sorted(sizes, key=lambda name: 0 if len(files[name]) < 2 else 1 if sizes[name] == largest else 2)
        ahead, num_ahead = iter(ordered), 0
        for name in ordered:
            while num_ahead < READ_AHEAD and (following := next(ahead, None)) is not None:
                prefetch(files, following)
                num_ahead += sizes[following]
            for used in loader.put(name, files.read(name)):
                files.release(used)
            progress.advance(sizes[name])
            num_ahead -= sizes[name]
    loader.finish()


def check(model: nn.Module, decoder: ModelPart, names: WeightsMapper, files: WeightFiles) -> None:
    """Raise CheckpointError unless the tensors of `files` are exactly those that the model needs, in their shapes."""
    _check(model, decoder, names, converted(names, files))


def converted(names: WeightsMapper, files: WeightFiles) -> WeightFiles:
    """The tensors that `names` names: those of the checkpoint, or what the method `converted(files)` of a plugin's
    class makes of them.
    """
    convert: Callable[[WeightFiles], WeightFiles] | None = getattr(names, "converted", None)
    return files if convert is None else convert(files)


def _check(model: nn.Module, decoder: ModelPart, names: WeightsMapper, files: WeightFiles) -> None:
    loader = CheckpointLoader(model, decoder, names)
    found = parameter_slices(model)
    filled: Counter[str] = Counter()
    present: set[str] = set()
    problems: list[str] = []
    for name in filter(loader.needs, files):
        try:
            view, ours = loader.target(name)
        except CheckpointError as error:
            problems.append(error.message)
            continue
        filled[found[ours].parameter] += view.numel()
        present.add(ours)
        shape = _stored_shape(files[name], decoder, names, ours)
        if shape != view.shape:
            problems.append(f"Tensor {name!r} has shape {list(shape)}; by config.json it should be {list(view.shape)}.")
    for slice_, view in loader.absent_slices(present):
        filled[slice_.parameter] += view.numel()
    for parameter, tensor in model.named_parameters():
        if filled[parameter] < tensor.numel():
            slices = [o for o, slice_ in found.items() if slice_.parameter == parameter and slice_.index]
            one_by_one = {o for o in slices if isinstance(found[o].index[0], int)}  # experts may also be stacked
            came_so = bool(one_by_one & present)
            slices = [o for o in slices if (o in one_by_one) == came_so] if len(one_by_one) < len(slices) else slices
            absent = [o for o in slices if o not in present and not names.is_optional(o)] if filled[parameter] else []
            problems += [f"The checkpoint lacks {_theirs(names, ours)}." for ours in absent or [parameter]]
    if problems:
        more = f" And {len(problems) - MAX_NAMED} more such problems." if len(problems) > MAX_NAMED else ""
        raise CheckpointError(" ".join(problems[:MAX_NAMED]) + more)


def _stored_shape(shape: tuple[int, ...], decoder: ModelPart, names: WeightsMapper, ours: str) -> tuple[int, ...]:
    transform = names.transform(ours)
    if transform is None or isinstance(transform, RowOrder):
        return shape
    try:
        return tuple(transform(torch.empty(shape, device="meta"), decoder).shape)
    except (RuntimeError, ValueError, IndexError):  # the transform does not fit the tensor's dimensions
        return shape


def _theirs(names: WeightsMapper, ours: str) -> str:
    """The checkpoint's name for Quire's name `ours`: the table applied backwards, if the result is unambiguous."""
    back = {o: t for t, o in names.renames}  # a family's own names come last and take precedence
    longest_first = sorted(back, key=len, reverse=True)
    pattern = re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, longest_first))})(?![^.])")
    name = pattern.sub(lambda match: back[match.group()], ours) if back else ours
    return f"{name!r}" if names.rename(name) == ours else f"a tensor for {ours!r}"


def randomize(
    model: nn.Module,
    seed: int = 0,
    sizes: Mapping[str, torch.Size] | None = None,
    change: Callable[[str, Tensor], Tensor] = lambda _, drawn: drawn,
) -> None:
    """Random weights of plausible size, the same on every device: matrices 1/√(inputs), norms around 1.

    sizes: of what is drawn for each parameter, if they are not the parameters' own; `change` makes the parameter of it,
    if the model has it.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for name, size in ({name: each.shape for name, each in parameters.items()} if sizes is None else sizes).items():
            drawn = _random(name, size, generator)
            if name in parameters:
                parameters[name].copy_(change(name, drawn))
    process_weights(model)


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if len(shape) > 1:
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
    if name.endswith("bias"):
        return torch.randn(shape, generator=generator) * 0.02
    return torch.rand(shape, generator=generator) * 0.2 + 0.9
