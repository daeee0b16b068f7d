"""Reads the settings of `platform serve` from the arguments of an application."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import yaml

from quire.commands.command_line import parse
from quire.commands.serve import ServedSettings, served_settings
from quire.errors import ConfigError

REFUSED = ("config", "host", "port", "uds", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "root_path", "max_restarts")
"""Settings of a server's socket and process, for which Ray Serve has its own."""


def read_settings(values: Mapping[str, Any]) -> ServedSettings:
    """The settings of `values`, whose keys are those of a file of `platform serve --config`. Raises ConfigError."""
    for key in values:
        if key.replace("-", "_") in REFUSED:
            raise ConfigError(
                f"args.serve: {key} has no effect behind Ray Serve, which has settings of its own for it."
            )
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="args-serve-") as file:
        yaml.safe_dump(dict(values), file)
        file.flush()
        try:
            return served_settings(parse(["serve", "--config", file.name]))
        except SystemExit as error:  # the parser has printed what is wrong
            raise ConfigError(
                "args.serve has a setting that `platform serve` refuses; its message is above."
            ) from error
