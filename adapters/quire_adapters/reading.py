"""Reads an adapter as PEFT writes them into `Changes`, and refuses what does not fit the model, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.isolation import CallsApart
from quire_adapters import dora, files, targets
from quire_adapters.changes import Changes, ExpertDelta, ExpertsChange, TableChange, may_be_whole
from quire_adapters.config import Config
from quire_adapters.modules import Module, bare, listed, modules_of
from quire_adapters.pairs import MAX_CHANGE, Pair, Pairs
from quire_adapters.sites import Lookup, Matrix, Mixture, Sites
from quire_kernels.low_rank import Delta


def read(folder: Path, sites: Sites, max_rank: int, dtype: torch.dtype, apart: CallsApart) -> Changes:
    """What the adapter in a folder does to the model with these sites, which runs in `dtype`.

    apart: what calls the function that reads files. Raises BadRequest for one that is not well-formed, does not fit
    the model, or needs what cannot be run.
    """
    max_bytes = sites.max_bytes(max_rank)
    found = apart(targets.read, str(folder), max_bytes, sites.max_tensors, memory_bytes=3 * max_bytes)
    config, ranks = Config(**found.value["config"]), found.value["ranks"]
    reading = _Reading(config, sites, Pairs(config, ranks, max_rank), dtype)
    largest = min(torch.finfo(dtype).max, MAX_CHANGE)
    for module in modules_of(files.tensors_of(found.value["tensors"], found.memory), largest):
        reading.take(module)
    if not reading.changes.targets:
        raise BadRequest("The adapter changes nothing: it has no tensors.", "lora_path")
    return reading.changes


@dataclass(frozen=True, eq=False)
class _Whole:
    """A weight that stands in place of the model's."""

    weight: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of it, float32, where the ids are."""
        return self.weight[ids.cpu()].to(ids.device)


class _Reading:
    """One adapter, module by module."""

    def __init__(self, config: Config, sites: Sites, pairs: Pairs, dtype: torch.dtype) -> None:
        self._config, self._sites, self._pairs, self._dtype = config, sites, pairs, dtype
        self._experts_seen: set[tuple[str, str, int]] = set()
        self.changes = Changes()

    def take(self, module: Module) -> None:
        """Everything there is of one module."""
        path = bare(module.path)
        order = self._sites.row_order(path)
        if order is not None:
            module.reorder(order)
        self._drop_copies(module, path)
        if not module.tensors:
            return
        site = self._sites.find(path)
        if isinstance(site, Matrix):
            self._matrix(module, site)
        elif isinstance(site, Lookup):
            self._table(module, site)
        else:
            self._experts(module, path, site)
        module.finish()
        self.changes.targets[path.rpartition(".")[2]] = None

    def _drop_copies(self, module: Module, path: str) -> None:
        """PEFT saves some of the base beside the adapter: embeddings that it changes, and all biases if any are."""
        for kind in ("weight", "bias"):
            base = self._sites.base(path, kind) if module.has(kind) else None
            if base is None:
                continue
            name, tensor = module.tensors[kind]
            if tuple(tensor.shape) != base.shape:
                if base.is_vocabulary and len(tensor.shape) == 2 and tensor.shape[1] == base.shape[1]:
                    raise BadRequest(
                        f"{name!r} has rows for {len(tensor)} tokens, and this model has {base.shape[0]}: adapters "
                        "with another vocabulary (added tokens) cannot be used.",
                        "lora_path",
                    )
                continue  # whoever takes it says which shape it should have
            if base.equals(tensor, self._dtype):
                del module.tensors[kind]
            elif not base.replaceable:
                raise BadRequest(
                    f"The adapter has {name!r} trained whole; of such only heads, the embeddings, what stands around "
                    "the blocks of a tower, and biases of matrices can be used (modules_to_save, bias).",
                    "lora_path",
                )

    # --- kinds of module -----------------------------------------------------------------------------

    def _matrix(self, module: Module, site: Matrix) -> None:
        outputs = site.shape[0]
        if may_be_whole(site.path) and module.has("weight"):
            self.changes.wholes[site.path] = module.take("weight", site.shape)
        whole = self.changes.wholes.get(site.path)
        source = site if whole is None else _Whole(whole)
        pair = self._pair(module, site.shape)
        scale = self._scale(module, outputs, pair, source, site.device)
        if module.has("bias") and site.bias is None:
            raise BadRequest(f"The adapter has a bias for {module.path!r}, which has none in this model.", "lora_path")
        if module.has("bias") and self._config.bias == "none" and not may_be_whole(site.path):
            raise BadRequest(
                f"The adapter has a trained bias for {module.path!r}, and adapter_config.json says `bias` none.",
                "lora_path",
            )
        bias = module.take("bias", (outputs,)) if module.has("bias") else site.bias
        shift = None if bias is None or site.bias is None else bias - site.bias * (1 if scale is None else scale)
        if pair is not None and self._config.lora_bias:
            added = module.take("b_bias", (outputs,)) * pair.factor
            shift = added if shift is None else shift + added
        if shift is not None and not shift.any():
            shift = None
        if pair is None:
            delta = Delta(shift=shift)
        else:
            delta = Delta(pair.a, pair.b if scale is None else pair.b * scale[:, None], scale, shift)
        if any(part is not None for part in delta):
            self._add(module.path, site, delta)

    def _pair(self, module: Module, shape: tuple[int, int], a: str = "a", b: str = "b") -> Pair | None:
        pair = self._pairs.of(module, shape, (a, b))
        self._note_rank(0 if pair is None else pair.rank)
        return pair

    def _note_rank(self, rank: int) -> None:
        self.changes.rank = max(self.changes.rank, rank)

    def _scale(
        self, module: Module, outputs: int, pair: Pair | None, source: Matrix | _Whole, device: torch.device
    ) -> Tensor | None:
        """What DoRA multiplies the outputs by."""
        if pair is None or not self._config.use_dora:
            return None
        magnitude = module.take("magnitude", (outputs,))
        return module.finite(
            f"{module.path} · magnitude", magnitude / dora.row_norms(source.rows, pair.a, pair.b, device)
        )

    def _add(self, path: str, site: Matrix, delta: Delta) -> None:
        """The delta, cut into those of the slices that make the matrix up."""
        places = self._sites.slices(site.path)
        deltas = self.changes.deltas.setdefault(site.path, [None] * len(places))
        for i in site.slices:
            if deltas[i] is not None:
                raise BadRequest(f"The adapter changes {path!r} twice: as a whole, and in parts.", "lora_path")
            start, stop = (at - site.start for at in places[i])
            b, scale, shift = (None if part is None else part[start:stop] for part in delta[1:])
            deltas[i] = Delta(delta.a, b, scale, shift)

    def _table(self, module: Module, site: Lookup) -> None:
        rows, width = site.shape
        whole = module.take("weight", site.shape) if module.has("weight") else None
        pair = self._pair(module, (width, rows), "table_a", "table_b")
        a = b = scale = None
        if pair is not None:
            a, b = pair.a.T, pair.b.T
            if self._config.use_dora:
                source = site.rows if whole is None else _Whole(whole).rows
                norms = dora.column_norms(source, a, b, site.table.weight.device)
                scale = module.finite(f"{module.path} · magnitude", module.take("magnitude", (width,)) / norms)
                b = b * scale
            a, b = _own(a, self._dtype), b * site.scale
        if whole is not None:
            whole = (whole * site.scale).to(self._dtype)
        self.changes.tables[site.path] = TableChange(whole, a, b, scale)

    def _experts(self, module: Module, path: str, site: Mixture) -> None:
        if self._config.use_dora:
            raise BadRequest(f"The adapter uses DoRA on experts ({path!r}), which cannot be run here.", "lora_path")
        change = self.changes.experts.setdefault(site.path, ExpertsChange())
        if site.expert is not None:
            matrix, start = site.matrix, site.experts.hidden if site.matrix == "up" else 0
            pair = self._pair(module, site.shape(matrix))
            found = {} if pair is None else {site.expert: pair}
        else:
            matrix, start = self._stacked_matrix(module, site), 0
            pairs = self._pairs.stacked(module, path, matrix, site.shape(matrix), site.count)
            self._note_rank(-(-pairs[0].rank // Pairs.parts(matrix)))
            found = dict(enumerate(pairs))
        for one in ("gate", "up") if matrix == "gate_up" else (matrix,):
            if self._experts_seen & {(site.path, one, expert) for expert in found}:
                raise BadRequest(f"The adapter changes {path!r} twice: as a whole, and in parts.", "lora_path")
            self._experts_seen |= {(site.path, one, expert) for expert in found}
        into = change.down if matrix == "down" else change.gate_up
        for expert, pair in found.items():
            delta = ExpertDelta(_own(pair.a, self._dtype), _own(pair.b, self._dtype), start)
            into.setdefault(expert, []).append(delta)

    def _stacked_matrix(self, module: Module, site: Mixture) -> str:
        """Which of the stacked matrices the tensors are for: their names do not say it."""
        found = module.shape("b")[0], module.shape("a")[1:]
        for matrix in ("gate_up", "down"):
            outputs, inputs = site.shape(matrix)
            if found == (outputs, (inputs,)):
                return matrix
        wanted = " or ".join(f"{site.shape(m)[0]} outputs and {site.shape(m)[1]} inputs" for m in ("gate_up", "down"))
        raise BadRequest(
            f"{listed([name for name, _ in module.tensors.values()])} fit no matrix of these experts: {wanted}.",
            "lora_path",
        )


def _own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that lies by itself, and not in what was read of the file."""
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
