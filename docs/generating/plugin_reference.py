"""The generated references of docs/plugins: parts, names of parameters, records and protocols, from the code itself."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import quire_models
from quire import plugin, records
from quire.errors import QuireError
from quire_models.loading import config_fields, weight_names

HUGGING_FACE = {
    "act": "hidden_act",
    "attn": "",
    "embed_scale": "",
    "eps": "rms_norm_eps, layer_norm_eps",
    "experts": "num_local_experts, num_experts",
    "experts_per_token": "num_experts_per_tok",
    "head_dim": "head_dim",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "kv_heads": "num_key_value_heads",
    "out_bias": "attention_bias (of o_proj)",
    "qk_norm": "q_norm, k_norm",
    "qkv_bias": "attention_bias (of q_proj, k_proj, v_proj)",
    "scale": "attention_multiplier, query_pre_attn_scalar",
    "logit_softcap": "final_logit_softcapping",
    "softcap": "attn_logit_softcapping",
    "theta": "rope_theta",
    "tied": "tie_word_embeddings",
    "top_k": "num_experts_per_tok",
    "vocab": "vocab_size",
    "width": "hidden_size",
    "window": "sliding_window",
}
"""The name in Hugging Face configs, by the name of a part's field."""

MEANINGS = {
    "affine": "whether there is a weight.",
    "attention_factor": "factor of cos and sin, None: computed from the other fields.",
    "attn": "the attention.",
    "beta_fast": "rotations within `original_len` above which a frequency is kept.",
    "beta_slow": "rotations within `original_len` below which a frequency is divided by `factor`.",
    "bias": "whether there are biases.",
    "blocks": "one for each layer.",
    "channels": "channels of a pixel.",
    "cross": "the cross-attention.",
    "eps": "added to the variance or mean square.",
    "factor": "of the longer context (`factor` in rope_scaling).",
    "head_dim": "dimensions of a head.",
    "high_freq_factor": "as in rope_scaling.",
    "long_factor": "divisors for texts longer than `original_len` (rope_scaling).",
    "low_freq_factor": "as in rope_scaling.",
    "max_len": "context of the model without scaling (max_position_embeddings).",
    "mixer": "the part that takes the place of attention.",
    "mlp": "the MLP or mixture of experts.",
    "mscale": "as in rope_scaling.",
    "mscale_all_dim": "as in rope_scaling.",
    "norm": "a norm, built separately for each place that needs one.",
    "norm_in": "whether there are norms before the branches.",
    "norm_out": "whether there are norms after the branches.",
    "original_len": "context of the model without scaling (original_max_position_embeddings).",
    "out_bias": "whether the output projection has a bias.",
    "outputs": "number of outputs.",
    "positions": "learned position embeddings.",
    "qkv_bias": "whether queries, keys and values have biases.",
    "residual_scale": "factor of what a branch adds.",
    "rope": "rotary embedding.",
    "scaling": "how it is extended to longer contexts.",
    "short_factor": "divisors for texts up to `original_len` (rope_scaling).",
    "truncate": "whether the range of interpolated frequencies is rounded to whole dimensions.",
}
"""What a field of a part means if the docstring of the part does not say it, by the name of the field."""

NOT_OF_CONFIGS = (
    "AudioTower",
    "GatedDeltaNet",
    "GatedNorm",
    "KimiDelta",
    "Mamba1",
    "Mamba2",
    "Pooling",
    "ShortConv",
)
"""Parts whose fields have names of their own in configs, or none."""

_FIELDS = re.compile(r"(?:^|(?<=[.;)] )|(?<=\n))((?:[a-z_]\w*)(?:(?:, then |, | and )[a-z_]\w*)*): ")
_BETWEEN = r", then |, | and "


def described(text: str, names: set[str]) -> tuple[str, dict[str, str]]:
    """The beginning of a docstring, and what it says of each field (`name: text` or `one, two: text`)."""
    text = re.sub(r"\s*\n\s*", " ", re.sub(r"\n\s*\n", " ", text)).strip()
    found = [m for m in _FIELDS.finditer(text) if set(re.split(_BETWEEN, m.group(1))) & names]
    ends = [*(m.start() for m in found[1:]), len(text)][: len(found)]
    texts = {m.group(1): text[m.end() : end].strip().removesuffix(";") for m, end in zip(found, ends, strict=True)}
    by_name = {name: meaning for group, meaning in texts.items() for name in re.split(_BETWEEN, group)}
    return text[: found[0].start()].strip() if found else text, by_name


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    if inspect.isfunction(value) or inspect.isclass(value):
        return f"`{value.__name__}`"
    if isinstance(value, frozenset):
        return f"`{{{', '.join(map(repr, sorted(value)))}}}`" if value else "`frozenset()`"
    return f"`{type(value).__name__}()`" if " at 0x" in repr(value) else f"`{value!r}`"


def table(cls: type, hugging_face: bool) -> str:
    """A dataclass: what it is, and a row for each field."""
    fields = [f for f in dataclasses.fields(cls) if not f.name.startswith("_")]
    about, meanings = described(inspect.getdoc(cls) or "", {f.name for f in fields})
    heads = ["field", "type", "default", *(["Hugging Face name"] if hugging_face else []), "meaning"]
    lines = [f"### {cls.__name__}", "", cell(about), ""]
    if fields:
        lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for f in fields:
        theirs = HUGGING_FACE.get(f.name, "") if cls.__name__ not in NOT_OF_CONFIGS else ""
        names = [", ".join(f"`{name}`" for name in theirs.split(", ")) if theirs and "(" not in theirs else theirs]
        cells = [
            f"`{f.name}`",
            f"`{f.type}`",
            default_of(f),
            *(names if hugging_face else []),
            meanings.get(f.name) or (MEANINGS.get(f.name, "") if hugging_face else ""),
        ]
        lines.append("| " + " | ".join(cell(text) for text in cells) + " |")
    made_by = [name for name, member in vars(cls).items() if isinstance(member, classmethod)]
    for name in made_by:
        lines += ["", function(getattr(cls, name), f"{cls.__name__}.{name}")]
    return "\n".join(lines).strip()


def function(made: Callable[..., Any], name: str) -> str:
    """The signature of a function, and its docstring."""
    text = " ".join((inspect.getdoc(made) or "").split())
    signature = str(inspect.signature(made)).replace("'", "")
    return f"`{name}{signature}`: {text}"


def protocol(cls: type) -> str:
    """A protocol: what it is, and each method or property with its docstring."""
    lines = [f"### {cls.__name__}", "", cell(" ".join((inspect.getdoc(cls) or "").split()))]
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property):
            shown, doc = f"{name} (property)", inspect.getdoc(member)
        elif inspect.isfunction(member):
            shown, doc = f"{name}{inspect.signature(member)}".replace("'", ""), inspect.getdoc(member)
        else:
            continue
        lines.append(f"- `{shown}`: {' '.join((doc or '').split())}".rstrip(": "))
    attributes = [f"- `{name}: {kind}`" for name, kind in vars(cls).get("__annotations__", {}).items()]
    return "\n".join([*lines[:3], "", *attributes, *lines[3:]]).strip()


def parts() -> str:
    """Every part that `quire_models` exports."""
    exported = [getattr(quire_models, name) for name in sorted(quire_models.__all__)]
    classes = [c for c in exported if inspect.isclass(c) and dataclasses.is_dataclass(c) and ".parts." in c.__module__]
    return "\n\n".join(table(cls, hugging_face=True) for cls in classes)


def fields_of_configs() -> str:
    """The functions of `config_fields`."""
    functions = [
        (name, member)
        for name, member in vars(config_fields).items()
        if inspect.isfunction(member) and member.__module__ == config_fields.__name__ and not name.startswith("_")
    ]
    return "\n".join(f"- {function(member, name)}" for name, member in functions)


def names() -> str:
    """The names of parameters, from the docstring of `quire_models.loading.weight_names`, and the ready-made tables."""
    text = inspect.getdoc(weight_names) or ""
    body = re.sub(r"\n\n((?: {4}.*\n?)+)", lambda m: f"\n\n```text\n{inspect.cleandoc(m.group(1))}\n```\n", text)
    tables = [name for name, value in vars(weight_names).items() if isinstance(value, weight_names.WeightsMapper)]
    return (
        f"{body}\n\nTables: {', '.join(f'`{name}`' for name in tables)}.\n\n{table(weight_names.WeightsMapper, False)}"
    )


def records_and_protocols() -> str:
    """Records by hook, then protocols."""
    exported = [getattr(records, name) for name in sorted(vars(records)) if inspect.isclass(getattr(records, name))]
    ours = [cls for cls in exported if cls.__module__.startswith("quire.records")]
    made = [cls for cls in ours if dataclasses.is_dataclass(cls)]
    protocols = [cls for cls in ours if getattr(cls, "_is_protocol", False)]
    hooks = "\n".join(f"| `{hook}` | `{record.__name__}` |" for hook, record in records.RECORDS.items())
    return "\n\n".join(
        [
            "| hook | record |\n|---|---|\n" + hooks,
            "## Records and other data",
            *(table(cls, hugging_face=False) for cls in made),
            "## Types that functions receive",
            *(table(cls, hugging_face=False) for cls in received_types()),
            "## Errors to raise",
            errors(),
            "## Protocols",
            *(protocol(cls) for cls in protocols),
        ]
    )


def received_types() -> list[type]:
    """The dataclasses of `quire.types` and `quire.params` that `quire.plugin` exports."""
    exported = [getattr(plugin, name) for name in sorted(dir(plugin))]
    modules = ("quire.types", "quire.params")
    return [
        c for c in exported if inspect.isclass(c) and dataclasses.is_dataclass(c) and c.__module__.startswith(modules)
    ]


def errors() -> str:
    """A table of the errors that `quire.plugin` exports: HTTP status, and when to raise them."""
    exported = [getattr(plugin, name) for name in sorted(dir(plugin))]
    classes = [c for c in exported if inspect.isclass(c) and issubclass(c, QuireError)]
    rows = [f"| `{c.__name__}` | {c.status} | {' '.join((inspect.getdoc(c) or '').split())} |" for c in classes]
    return "\n".join(["| error | status | meaning |", "|---|---|---|", *rows])
