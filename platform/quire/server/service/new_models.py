"""Checks what requests may load, and makes the settings of a new model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quire.errors import BadRequest, ConfigError, NotFound
from quire.hooks.demos import from_demo
from quire.media.limits import MediaLimits
from quire.records import Registry
from quire.server.schemas.models import LoadModelRequest
from quire.settings.model_config import ModelConfig
from quire.settings.model_values import OF_ONE_MODEL, model_config
from quire.settings.server_config import ServerConfig

MAX_NAME = 128
MAX_PATH = 4096
"""Characters of `name` and of `model`."""

PATHS = ("tokenizer", "chat_template")
"""Settings that may be paths."""

OF_OPERATORS = (
    "trust_remote_code",
    "download_dir",
    "weights_cache",
    "weights_cache_bytes",
    "default_mm_loras",
    "allowed_local_media_path",
    "allowed_media_domains",
    "allow_private_media_addresses",
)
"""Settings that open more of the machine than the model: only requests with an admin key may change them."""


def check_model_name(name: str, param: str = "name") -> None:
    """Raise `BadRequest` unless the name has from 1 to `MAX_NAME` printable characters and no spaces around it."""
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise BadRequest(
            f"{name[:MAX_NAME]!r} cannot be the name of a model: it must have from 1 to {MAX_NAME} printable "
            "characters, without spaces around it.",
            param,
        )


@dataclass(frozen=True, kw_only=True)
class NewModels:
    """Makes the settings of new models. defaults: from the flags of the command line."""

    server: ServerConfig
    defaults: ModelConfig
    registry: Registry

    def check_allowed(self) -> None:
        """Raise `BadRequest` if requests may neither load nor unload models."""
        if self.server.model_roots == ():
            raise BadRequest(
                "This server loads and unloads no models at run time: it is reached from other machines, and neither "
                "--model-root nor --admin-api-key is set."
            )

    def config(self, request: LoadModelRequest) -> ModelConfig:
        """The settings of the model of a request; looks at the disk. Raises `BadRequest` and `NotFound`."""
        if not request.model or len(request.model) > MAX_PATH or not request.model.isprintable():
            raise BadRequest(f"`model` must be a folder or hub id of at most {MAX_PATH} characters.", "model")
        named = {"name": request.name, "model": request.model}
        if taken := sorted(named.keys() & request.settings.keys()):
            raise BadRequest(f"`{taken[0]}` belongs beside `settings`, not in it.", "settings")
        self._check_settings(request.settings)
        own = {field: default for field, default in asdict(self.defaults).items() if field not in OF_ONE_MODEL}
        try:
            config = from_demo(model_config(own, {**request.settings, **named}), self.registry)
            MediaLimits.from_config(config, self.registry)
        except ConfigError as error:
            raise BadRequest(error.message, "settings") from error
        self._check_folder(config.model, request.model)
        return replace(config, served_model_name=(request.name, *config.served_model_name[1:]))

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        names = {name.replace("-", "_"): name for name in settings}
        closed = [names[name] for name in OF_OPERATORS if name in names]
        if closed and not self.server.admin_api_key:
            raise BadRequest(
                f"`{closed[0]}` can be set in a request only with an admin key (--admin-api-key); set it on the "
                "command line.",
                "settings",
            )
        for name in PATHS:
            value = settings.get(names.get(name, ""))
            if isinstance(value, str) and (name == "tokenizer" or _exists(value)):
                self._check_root(value)

    def _check_folder(self, path: str, given: str) -> None:
        """given: what the request named, which may be a demo."""
        if path == given:
            self._check_root(path)
        may_be_hub_id = self.server.model_roots is None and not given.startswith(("/", ".", "~"))
        if not may_be_hub_id and not _exists(path):
            raise NotFound(f"There is no folder or file {given:.200}.", "model")

    def _check_root(self, path: str) -> None:
        """Raise `BadRequest` for a path, or hub id, that is not below the folders of --model-root."""
        if self.server.model_roots is None:
            return
        try:
            found = Path(path).expanduser().resolve()
        except (OSError, ValueError, RuntimeError):
            found = Path("/")
        roots = [Path(root).expanduser().resolve() for root in self.server.model_roots or ()]
        if not any(found.is_relative_to(root) for root in roots):
            raise BadRequest(f"{path:.200} is not in a folder that models may be loaded from (--model-root).", "model")


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links, no such user
        return False
