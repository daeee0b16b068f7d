"""The server as an application of Ray Serve: `import_path: quire.ray:build_app` in its configuration file.

`application` declares two deployments. `ingress` takes HTTP requests and passes each to a replica; `replica` runs the
application of `platform serve` with an engine process. `router` chooses the replica, with `quire.routing`, and
`autoscaling` says how many there should be. `command` is `platform deploy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def build_app(args: Mapping[str, Any]) -> Application:
    """The application that `args` of a configuration file describe. Raises ConfigError."""
    from quire.ray.application import application

    return application(args)
