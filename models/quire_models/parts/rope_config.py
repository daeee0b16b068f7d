"""Rotary position embeddings as data: which dimensions rotate how fast, and how they are scaled to long contexts.

`quire_models.step.rope` computes the angles; this module imports no torch.

Two of the scalings depend on a seq's length. A result must depend neither on other seqs of the batch nor on
how a prompt was chunked, so the length that counts for the token at position p is
max(length of the seq's prompt, p + 1): known before the first chunk, and unchanged after a preemption. It gives the
same logits as transformers for a prompt of any length and for tokens appended with a cache. (For Phi-3,
transformers' `generate` discards the cache when a seq outgrows the original length; Quire keeps it.)
Cached pages of such a model may be shared only between prompts with the same `variant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, arXiv 2306.15595)."""

    factor: float

    def variant(self, prompt_len: int) -> int:
        """Always 0: independent of the length."""
        return 0


@dataclass(frozen=True, kw_only=True)
class DynamicNtk:
    """The base grows with the length above `max_len` (NTK-aware scaling, as in transformers)."""

    factor: float
    max_len: int

    def variant(self, prompt_len: int) -> int:
        """Each length above `max_len` rotates its keys differently."""
        return prompt_len if prompt_len > self.max_len else 0


@dataclass(frozen=True, kw_only=True)
class Llama3:
    """Low frequencies divided by `factor`, high ones kept, those between interpolated (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int

    def variant(self, prompt_len: int) -> int:
        """Always 0: independent of the length."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN (arXiv 2309.00071): interpolation by wavelength, and cos and sin times `attention_factor`."""

    factor: float
    original_len: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def variant(self, prompt_len: int) -> int:
        """Always 0: independent of the length."""
        return 0


@dataclass(frozen=True, kw_only=True)
class LongRope:
    """LongRoPE (arXiv 2402.13753): one divisor per frequency, from a second list above `original_len`."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_len: int
    factor: float
    attention_factor: float | None = None

    def variant(self, prompt_len: int) -> int:
        """0 for short prompts, 1 for long ones."""
        return int(prompt_len > self.original_len)


@dataclass(frozen=True, kw_only=True)
class Proportional:
    """Only the `rotated` highest of the frequencies of a whole head are used; other pairs do not rotate (Gemma 4)."""

    rotated: int

    def variant(self, prompt_len: int) -> int:
        """Always 0: independent of the length."""
        return 0


Scaling = LinearScaling | DynamicNtk | Llama3 | Yarn | LongRope | Proportional


@dataclass(frozen=True)
class Rope:
    """Rotary embedding (arXiv 2104.09864) of the first `dim` dimensions of each head.

    theta: base of the frequencies (rope_theta). Dimension i rotates together with i + dim/2, or with its neighbor if
    `interleaved`. sections: number of dimension pairs for each axis of `ForwardBatch.rope_positions`, where positions
    have several (M-RoPE, arXiv 2409.12191; mrope_section); () = one axis. mixed: pairs of dimensions belong to the axes
    in turn, and to the first axis when the others have all of theirs (mrope_interleaved). axial: each section has its
    own frequencies, starting with the highest; only without scaling. axial_turns: the sections of an axial embedding
    take the frequencies of one series in turn (Pixtral).
    """

    dim: int
    theta: float = 10_000.0
    scaling: Scaling | None = None
    interleaved: bool = False
    sections: tuple[int, ...] = ()
    mixed: bool = False
    axial: bool = False
    axial_turns: bool = False

    @classmethod
    def from_config(cls, config: Any, head_dim: int, layer_type: str | None = None) -> Rope:
        """Read a config: `rope_parameters` (per layer type if nested), or the older `rope_theta` and `rope_scaling`.

        Raises CheckpointError for an unsupported kind of scaling, or sections or factors that do not fit `dim`.
        """
        parameters = _parameters(config)
        if layer_type is not None and layer_type in parameters:
            parameters = parameters[layer_type]
        share = parameters.get("partial_rotary_factor", 1.0)
        if parameters.get("rope_type") == "proportional":
            return cls(head_dim, parameters["rope_theta"], Proportional(rotated=int(share * head_dim // 2)))
        dim = int(head_dim * share)
        theta = parameters.get("rope_theta", 10_000.0)
        if not theta > 0:
            raise CheckpointError(f"config.json has rope_theta {theta}; it must be above 0.")
        scaling = _scaling(parameters, config)
        if isinstance(scaling, LongRope) and {len(scaling.short_factor), len(scaling.long_factor)} != {dim // 2}:
            raise CheckpointError(
                f"config.json has {len(scaling.short_factor)} and {len(scaling.long_factor)} rotary factors; it must"
                f" have {dim // 2} of each, half of the rotary dimensions."
            )
        sections = _sections(parameters, dim)
        return cls(dim, theta, scaling, sections=sections, mixed=bool(sections and parameters.get("mrope_interleaved")))

    @property
    def axes(self) -> int:
        """Number of position axes."""
        return len(self.sections) or 1

    @property
    def has_variants(self) -> bool:
        """Whether `variant` depends on the length."""
        return isinstance(self.scaling, DynamicNtk | LongRope)

    def variant(self, prompt_len: int) -> int:
        """Seqs may share cached pages only if this is equal for their prompt lengths (0: independent of the length)."""
        return 0 if self.scaling is None else self.scaling.variant(prompt_len)


def _parameters(config: Any) -> Mapping[str, Any]:
    values = vars(config)
    if values.get("rope_parameters"):
        return dict(values["rope_parameters"])
    older = {key: values[key] for key in ("rope_theta", "partial_rotary_factor") if values.get(key) is not None}
    return older | dict(values.get("rope_scaling") or {})


def _sections(p: Mapping[str, Any], dim: int) -> tuple[int, ...]:
    sections = tuple(p.get("mrope_section") or ())
    if sections and 2 * sum(sections) != dim:
        raise CheckpointError(
            f"config.json has mrope_section {list(sections)}; its sum must be {dim // 2}, half of the rotary dimensions"
        )
    return sections


def _scaling(p: Mapping[str, Any], config: Any) -> Scaling | None:
    kind = p.get("rope_type", p.get("type", "default"))
    readers = {"linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
    if kind in ("default", None, "mrope"):
        return None
    if kind not in readers:
        raise CheckpointError(
            f"config.json asks for rotary scaling {kind!r}; supported are default, {', '.join(sorted(readers))}."
        )
    try:
        return readers[kind](p, config)
    except KeyError as missing:
        raise CheckpointError(
            f"config.json asks for {kind!r} rotary scaling but lacks its setting {missing}."
        ) from None


def _linear(p: Mapping[str, Any], config: Any) -> Scaling:
    return LinearScaling(factor=p["factor"])


def _dynamic(p: Mapping[str, Any], config: Any) -> Scaling:
    return DynamicNtk(factor=p["factor"], max_len=config.max_position_embeddings)


def _llama3(p: Mapping[str, Any], config: Any) -> Scaling:
    return Llama3(
        factor=p["factor"],
        low_freq_factor=p["low_freq_factor"],
        high_freq_factor=p["high_freq_factor"],
        original_len=p.get("original_max_position_embeddings") or config.max_position_embeddings,
    )


def _yarn(p: Mapping[str, Any], config: Any) -> Scaling:
    original = p.get("original_max_position_embeddings") or config.max_position_embeddings
    return Yarn(
        factor=p.get("factor") or config.max_position_embeddings / original,
        original_len=original,
        attention_factor=p.get("attention_factor"),
        beta_fast=p.get("beta_fast") or 32.0,
        beta_slow=p.get("beta_slow") or 1.0,
        mscale=p.get("mscale"),
        mscale_all_dim=p.get("mscale_all_dim"),
        truncate=p.get("truncate", True),
    )


def _longrope(p: Mapping[str, Any], config: Any) -> Scaling:
    # Phi-3 has the original length beside the rotary settings, not inside them
    original = p.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return LongRope(
        short_factor=tuple(p["short_factor"]),
        long_factor=tuple(p["long_factor"]),
        original_len=original,
        factor=p.get("factor") or config.max_position_embeddings / original,
        attention_factor=p.get("attention_factor"),
    )
