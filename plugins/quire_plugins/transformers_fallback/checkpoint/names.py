"""How the tensors of a checkpoint are named: as transformers names them, after its own conversions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire_models.loading.weight_names import ROTARY_TABLES, WeightsMapper, transpose
from quire_plugins.transformers_fallback.known_layers import attention_parts, mlp_parts
from quire_plugins.transformers_fallback.replacing import act_of_experts, scale_of, transposed_paths
from quire_plugins.transformers_fallback.tracing import TracedModel

if TYPE_CHECKING:
    from quire_models.loading.quantized_files import WeightFiles


_INNER = WeightsMapper(
    (
        *(("gate_up_proj", "gate_up"), ("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down")),
        *(("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "o")),
    )
)
"""Names of matrices in attention, MLPs and experts that Quire's parts build."""


@dataclass(frozen=True)
class TransformersNames(WeightsMapper):
    """Names of transformers' modules and parameters, to those of `TransformersModel`.

    exact: names of single modules. body_prefix: of the body in transformers' model, with a dot. unused: regular
    expressions for tensors that the model does not use. duplicates: names of tied parameters that have another name.
    known: names of all parameters. inner: paths of modules whose matrices have Quire's names.
    """

    exact: tuple[tuple[str, str], ...] = ()
    body_prefix: str = ""
    has_rest: bool = True
    unused: tuple[str, ...] = ()
    duplicates: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    traced: TracedModel | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the traced model, which only loading needs: names are sent to processes that compile grammars."""
        return {**self.__dict__, "traced": None}

    def converted(self, files: WeightFiles) -> WeightFiles:
        """The tensors as transformers names and shapes them."""
        from quire_plugins.transformers_fallback.checkpoint.converted_files import ConvertedFiles

        return files if self.traced is None else ConvertedFiles(files, self.traced.model)

    def rename(self, name: str) -> str:
        """The name in `TransformersModel` of a tensor or module of transformers' model."""
        for path in self._inner_paths(name):
            name = f"{path}.{_INNER.rename(name[len(path) + 1 :])}"
        for theirs, ours in self.exact:
            if name == theirs or name.startswith(f"{theirs}."):
                return ours + name[len(theirs) :]
        if name.startswith(("body.", "rest.", "heads.")):
            return name
        if name.startswith(self.body_prefix):
            return f"body.{name[len(self.body_prefix) :]}"
        return f"rest.{name}"

    def _inner_paths(self, name: str) -> list[str]:
        """The module with matrices named by Quire that a tensor or module belongs to, if there is one."""
        parts = name.split(".")
        paths = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        return next(([path] for path in paths if path in self.inner), [])

    def ignores(self, name: str) -> bool:
        """Whether to skip a tensor: a table, a copy of a tied tensor, or a part that is not used."""
        if name in self.duplicates or super().ignores(name):
            return True
        if not self.has_rest and self.rename(name).startswith("rest."):
            return True
        return name not in self.known and any(re.search(pattern, name) for pattern in self.unused)


def names_of(traced: TracedModel, heads: tuple[tuple[str, str], ...] = ()) -> TransformersNames:
    """The names of a traced model. heads: further names, of heads for pooling."""
    model = traced.model
    prefix = f"{traced.body_path}." if traced.body_path else ""
    paths = {id(module): path for path, module in model.named_modules()}
    exact = list(heads)
    table = model.get_submodule(traced.body_path).get_input_embeddings()
    if table is not None and scale_of(table) is not None:
        exact.append((paths[id(table)], "embed"))
    if traced.has_lm_head:
        exact.append((paths[id(model.get_output_embeddings())], "head"))
    names = TransformersNames(
        exact=tuple(exact), body_prefix=prefix, has_rest=traced.has_lm_head, unused=_unused(model), traced=traced
    )
    experts = [path for path, module in model.named_modules() if act_of_experts(module) is not None]
    transposed = tuple((f"{names.rename(path)}.weight", transpose) for path in transposed_paths(model))
    return TransformersNames(
        transforms=transposed,
        ignored=(*ROTARY_TABLES, *non_persistent(model)),
        exact=names.exact,
        body_prefix=prefix,
        has_rest=names.has_rest,
        unused=names.unused,
        duplicates=frozenset(duplicates(model, prefix)),
        known=frozenset(model.state_dict()),
        inner=frozenset((*experts, *attention_parts(traced), *mlp_parts(model))),
        traced=traced,
    )


def duplicates(model: Any, body_prefix: str) -> set[str]:
    """Names of parameters that are tied to another one; that of the body counts."""
    first: dict[int, str] = {}
    found = set()
    every = list(model.named_parameters(remove_duplicate=False))
    for name, parameter in sorted(every, key=lambda pair: not pair[0].startswith(body_prefix)):
        if first.setdefault(id(parameter), name) != name:
            found.add(name)
    return found


def non_persistent(model: Any) -> tuple[str, ...]:
    """Names of buffers that the model computes; older checkpoints have some of them."""
    every, kept = {name for name, _ in model.named_buffers()}, set(model.state_dict())
    return tuple(sorted(every - kept))


def _unused(model: Any) -> tuple[str, ...]:
    found: list[str] = []
    for module in model.modules():
        found += getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    return tuple(dict.fromkeys(found))
