"""The bodies of requests and responses about sleeping models, aliases and settings that are read again."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from quire.types.request_model import Identifier, RequestModel


class WeightedModel(RequestModel):
    """A model that an alias stands for. weight: its share of the requests, relative to the other weights."""

    model: Identifier
    weight: float = 1.0


class SetAliasRequest(RequestModel):
    """`POST /v1/model_aliases`: `model`, or `models` with weights.

    sticky: requests that get the same model of several. user: those with the same `user`, `safety_identifier`,
    `prompt_cache_key` or `cache_salt`; client: those of one API key or address; none: no two.
    """

    alias: Identifier
    model: Identifier | None = None
    models: list[WeightedModel] | None = None
    sticky: Literal["user", "client", "none"] = "user"


class AliasModel(BaseModel):
    """A model of an alias. state: of the model, null if it is not served."""

    model: str
    weight: float
    state: str | None


class Alias(BaseModel):
    """An alias and the models that it stands for."""

    id: str
    object: Literal["model_alias"]
    sticky: str
    models: list[AliasModel]


class AliasList(BaseModel):
    """All aliases, in the order in which they were set first."""

    object: Literal["list"]
    data: list[Alias]


class DeletedAlias(BaseModel):
    """An alias was removed."""

    id: str
    object: Literal["model_alias"]
    deleted: bool


class Sleeping(BaseModel):
    """Answer of `POST /sleep`, when memory is free."""

    status: Literal["sleeping"]
    level: int


class Awake(BaseModel):
    """What was woken. status: sleeping if other parts sleep on."""

    status: Literal["awake", "sleeping"]
    tags: list[str]


class IsSleeping(BaseModel):
    """Whether the models sleep."""

    is_sleeping: bool


class Reloaded(BaseModel):
    """What has changed in the settings. failed: models that could not be loaded, and why.

    needs_restart: settings that differ from those in force, which are read only at the start.
    """

    object: Literal["reload"] = "reload"
    file: str | None
    loaded: list[str] = Field(default_factory=list)
    unloading: list[str] = Field(default_factory=list)
    aliases: list[str] = Field(default_factory=list)
    failed: dict[str, str] = Field(default_factory=dict)
    needs_restart: list[str] = Field(default_factory=list)
