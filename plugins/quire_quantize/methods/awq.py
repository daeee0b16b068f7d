"""AWQ (arXiv 2306.00978): inputs with large activations get finer steps, by factors moved into the layer before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix
from quire_models.modules.mlp import GatedFeedForward
from quire_quantize.calibration import BlockRunner
from quire_quantize.methods.rounding import RoundingScheme, output_error, quantize_named, read_matrix, rounded
from quire_quantize.plan import Matrix, QuantizationPlan

STEPS = 20
"""Number of exponents between 0 and 1 that are tried."""


@dataclass(frozen=True)
class _Fold:
    """Where the factors of a projection's inputs go.

    norm: path of a norm whose weight and bias are divided; else the rows of the matrices of `rows` are.
    """

    path: str
    norm: str | None
    rows: str | None


def awq(
    plan: QuantizationPlan, scheme: RoundingScheme, runner: BlockRunner
) -> Iterator[tuple[str, QuantizedMatrix | Tensor]]:
    """Block by block, with inputs that the quantized blocks before it give; the other matrices by themselves."""
    for index in range(runner.num_blocks):
        grams = runner.grams(index)
        matrices = plan.in_block(index)
        weights = {matrix.name: read_matrix(plan, matrix).float() for matrix in matrices}
        dtypes = {matrix.name: plan.files.read(matrix.name).dtype for matrix in matrices}
        for fold in _folds(plan, runner, index):
            readers = [matrix for matrix in matrices if matrix.path == fold.path]
            factors = _best_factors([weights[matrix.name] for matrix in readers], grams[fold.path], scheme)
            if factors is None:
                continue
            yield from _divide(plan, runner, fold, factors, matrices, weights)
            for matrix in readers:
                weights[matrix.name] *= factors
            grams[fold.path] = grams[fold.path] / factors[:, None] / factors
        for matrix in matrices:
            weight = weights[matrix.name]
            grid = replace(scheme.grid(weight), stored=dtypes[matrix.name])
            importance = grams[matrix.path].diagonal()
            importance = importance + 1e-4 * importance.mean() + 1e-30
            found = quantize_named(matrix.name, weight, grid, (importance / importance.mean()).float())
            runner.put(matrix, found.dequantized())
            yield matrix.name, found
        runner.advance(index)
    yield from rounded(plan, plan.outside_blocks(), scheme)


def _folds(plan: QuantizationPlan, runner: BlockRunner, index: int) -> Iterator[_Fold]:
    """The projections of a block whose inputs come from a norm that only they read, or from a linear layer."""
    block, path = runner.block(index), f"blocks.{index}"
    chosen = {matrix.path for matrix in plan.in_block(index)}
    mlp = getattr(block, "mlp", None)
    if (
        isinstance(mlp, GatedFeedForward)
        and mlp.gate_up.bias is None
        and {f"{path}.mlp.down", f"{path}.mlp.gate_up"} <= chosen
    ):
        yield _Fold(f"{path}.mlp.down", None, f"{path}.mlp.gate_up")
    if type(block).__name__ != "ResidualBlock":
        return
    for norm, readers in (("attn_in", ("attn.qkv",)), ("mlp_in", ("mlp.gate_up", "mlp.up"))):
        reader = next((f"{path}.{each}" for each in readers if f"{path}.{each}" in chosen), None)
        if reader is not None and f"{path}.{norm}.weight" in plan.names_of:
            yield _Fold(reader, f"{path}.{norm}", None)


def _best_factors(weights: Sequence[Tensor], gram: Tensor, scheme: RoundingScheme) -> Tensor | None:
    """Factors [inputs] with the least error of the outputs: (root mean square of the input)^exponent, None for ones."""
    size = gram.diagonal().clamp(min=0).sqrt()
    if not float(size.max()) > 0:
        return None
    size = size.clamp(min=float(size.max()) * 1e-4)
    best, found = float("inf"), None
    grids = [replace(scheme.grid(weight), search=False) for weight in weights]
    for step in range(STEPS):
        factors = size ** (step / STEPS)
        factors = factors / (factors.max() * factors.min()).sqrt()
        error = 0.0
        for weight, grid in zip(weights, grids, strict=True):
            rounded_weight = quantize_named("weight", weight * factors, grid).dequantized() / factors
            error += output_error(weight - rounded_weight, gram)
        if error < best:
            best, found = error, factors if step else None
    return found


def _divide(
    plan: QuantizationPlan,
    runner: BlockRunner,
    fold: _Fold,
    factors: Tensor,
    matrices: Sequence[Matrix],
    weights: dict[str, Tensor],
) -> Iterator[tuple[str, Tensor]]:
    """Divide what comes before a projection by the factors of its inputs; yields norms, and biases of linear layers."""
    if fold.norm is not None:
        for ours, divided in runner.divide_norm(fold.norm, factors):
            name = plan.names_of[ours]
            yield name, divided.to(plan.files.read(name).dtype)
        return
    for matrix in matrices:
        rows = runner.up_rows(matrix) if matrix.path == fold.rows else None
        if rows is not None:
            weights[matrix.name][rows] /= factors[:, None]
