"""Names that stand for loaded models, and are given to other models while the server runs.

A request resolves its alias once, when its body has been read, and stays with that model.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import BadRequest, ConfigError, NotFound

MAX_ALIASES = 1024
MAX_TARGETS = 16
"""Models of one alias."""

Sticky = Literal["user", "client", "none"]

USER_FIELDS = ("user", "safety_identifier", "prompt_cache_key", "cache_salt")
"""Fields of a body that say to whom a request belongs; the first that is given counts."""


@dataclass(frozen=True)
class AliasTarget:
    """A model, and its share of the requests relative to the other weights."""

    model: str
    weight: float = 1.0


@dataclass(frozen=True)
class ModelAlias:
    """A name for one model, or for several by weight.

    sticky: which requests get the same model. user: those with the same value of a field of `USER_FIELDS`; others draw.
    client: those of one API key or address. none: each draws.
    """

    name: str
    targets: tuple[AliasTarget, ...]
    sticky: Sticky = "user"

    def choose(self, key: str | None, draw: Callable[[], float] = random.random) -> str:
        """The model of a request. key: requests with equal keys get the same model; None: it is drawn.

        The keys of a target are those of an interval, so that a larger weight takes over further keys and keeps those
        that the target has.
        """
        if len(self.targets) == 1:
            return self.targets[0].model
        point = (draw() if key is None else _fraction(f"{self.name}\0{key}")) * sum(t.weight for t in self.targets)
        for target in self.targets:
            point -= target.weight
            if point < 0:
                return target.model
        return self.targets[-1].model

    def key_of(self, body: Mapping[str, Any], client: str) -> str | None:
        """What the choice for a request depends on; None: on nothing."""
        if self.sticky == "user":
            return next((f"{body[name]}" for name in USER_FIELDS if body.get(name)), None)
        return client if self.sticky == "client" else None

    @property
    def first(self) -> str:
        """The model with the largest weight."""
        return max(self.targets, key=lambda target: target.weight).model


class AliasTable:
    """The aliases of a server by name. They belong to the API process, so they outlive the engine process."""

    def __init__(self) -> None:
        self._aliases: dict[str, ModelAlias] = {}

    def all(self) -> Sequence[ModelAlias]:
        return tuple(self._aliases.values())

    def get(self, name: str | None) -> ModelAlias | None:
        return self._aliases.get(name) if name else None

    def of_model(self, model: str) -> list[str]:
        """The aliases that stand for a model."""
        return [alias.name for alias in self.all() if any(target.model == model for target in alias.targets)]

    def set(self, alias: ModelAlias) -> None:
        """Give a name to other models, from the next request on. Raises `BadRequest` for one too many."""
        if alias.name not in self._aliases and len(self._aliases) >= MAX_ALIASES:
            raise BadRequest(f"There are {MAX_ALIASES} aliases already, which is the maximum.", "alias")
        self._aliases[alias.name] = alias

    def remove(self, name: str) -> None:
        """Forget an alias. Raises `NotFound`."""
        if self._aliases.pop(name, None) is None:
            known = f" Aliases: {', '.join(list(self._aliases)[:20])}." if self._aliases else ""
            raise NotFound(f"There is no alias `{name:.200}`.{known}", "alias")


def checked_targets(model: str | None, models: Sequence[AliasTarget] | None) -> tuple[AliasTarget, ...]:
    """The targets of an alias from the two ways to write them; raises `BadRequest`."""
    if (model is None) == (models is None):
        raise BadRequest("An alias needs either `model` or `models`.", "model")
    targets = (AliasTarget(model),) if model is not None else tuple(models or ())
    if not 0 < len(targets) <= MAX_TARGETS:
        raise BadRequest(f"`models` must have from 1 to {MAX_TARGETS} entries; got {len(targets)}.", "models")
    for target in targets:
        if not math.isfinite(target.weight) or target.weight <= 0:
            raise BadRequest(
                f"The weight of `{target.model:.200}` must be a finite number above 0; got {target.weight}.", "models"
            )
    if not math.isfinite(sum(target.weight for target in targets)):
        raise BadRequest("The weights together must be a finite number.", "models")
    names = [target.model for target in targets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadRequest(f"`{twice:.200}` is listed twice.", "models")
    return targets


def parse_aliases(given: Mapping[str, Any]) -> list[ModelAlias]:
    """The aliases of --model-aliases: from each name to a model, or to a list of {"model": …, "weight": …}.

    Raises ConfigError. Whether the models exist is not checked.
    """
    return [ModelAlias(name, _targets(name, value)) for name, value in given.items()]


def _targets(name: str, value: Any) -> tuple[AliasTarget, ...]:
    try:
        if isinstance(value, str):
            return checked_targets(value, None)
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise ConfigError(f"it must be a model, or a list of {{model: …, weight: …}}; got {value!r:.100}.")
        return checked_targets(None, [_target(item) for item in value])
    except (BadRequest, ConfigError) as error:
        raise ConfigError(f"--model-aliases: {name!r:.200}: {error.message}") from error


def _target(item: Mapping[str, Any]) -> AliasTarget:
    model, weight = item.get("model"), item.get("weight", 1.0)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not isinstance(model, str) or not is_number or item.keys() - {"model", "weight"}:
        raise ConfigError(f"a model has a `model` and a `weight`; got {dict(item)!r:.100}.")
    return AliasTarget(model, float(weight))


def check_models(aliases: Sequence[ModelAlias], names: Collection[str]) -> None:
    """Raise ConfigError for an alias that is the name of a model, or stands for none of these."""
    for alias in aliases:
        if alias.name in names:
            raise ConfigError(f"--model-aliases: {alias.name!r:.200} is the name of a model.")
        for target in alias.targets:
            if target.model not in names:
                known = ", ".join(names) or "none"
                raise ConfigError(
                    f"--model-aliases: {alias.name!r:.200}: there is no model {target.model!r:.200}; models: {known}."
                )


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends on a text only."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
