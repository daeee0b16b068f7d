"""`platform deploy`: runs the applications of a configuration file of Ray Serve on a cluster."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import yaml

from quire.errors import ConfigError
from quire.records import Command

DESCRIPTION = """\
Deploy the applications of a configuration file of Ray Serve, such as one with `import_path: quire.ray:build_app`.

examples:
  platform deploy cluster.yaml                     on the cluster of this machine, or a new one of this machine alone
  platform deploy cluster.yaml --address ray://head:10001

docs/scale/ray.md describes the file. `serve deploy` of Ray reads the same one."""

POLL_S = 0.5

CONTROLLER = {"RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1"}
"""Variables of the controller of Ray Serve: a replica that stands still is killed, not asked to finish its requests."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("file", metavar="FILE", help="YAML file in the format of Ray Serve")
    parser.add_argument("--address", metavar="ADDRESS", help="the cluster (default: RAY_ADDRESS, else this machine's)")
    parser.add_argument(
        "--timeout-s", type=float, default=1800.0, metavar="X", help="how long the applications may take to start"
    )


def _run(args: argparse.Namespace) -> int:
    try:
        import ray
        from ray.serve._private import api
        from ray.serve.schema import ServeDeploySchema
    except ImportError as error:
        raise ConfigError("platform deploy needs Ray: pip install 'quire-serve[ray]'") from error
    try:
        config = ServeDeploySchema(**_read(args.file))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{args.file} is no configuration of Ray Serve: {error}") from error
    is_new = _connect(ray, args.address)
    client = api.serve_start(
        http_options=config.http_options.model_dump(),
        proxy_location=config.proxy_location,
        controller_options={"runtime_env": {"env_vars": CONTROLLER}},
    )
    client.deploy_apps(config, _blocking=False)
    _wait([application.name for application in config.applications], args.timeout_s)
    print(f"running: {', '.join(application.name for application in config.applications)}", flush=True)
    if is_new:  # the cluster ends with this process
        while True:
            time.sleep(3600)
    return 0


def _read(name: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(Path(name).read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{name} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found.get("applications"):
        raise ConfigError(f"{name} has no list of `applications`.")
    return found


def _connect(ray: Any, address: str | None) -> bool:
    """Connect to a cluster; whether it is a new one."""
    try:
        ray.init(address=address or "auto", namespace="serve", log_to_driver=False)
    except ConnectionError as error:
        if address:
            raise ConfigError(f"There is no cluster at {address}: {error}") from error
        ray.init(address="local", namespace="serve", log_to_driver=False)
        return True
    return False


def _wait(names: list[str], timeout_s: float) -> None:
    """Wait until the applications run. Raises ConfigError if one fails or takes too long."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    until = time.monotonic() + timeout_s
    while True:
        found = serve.status().applications
        states = {name: found[name] for name in names if name in found}
        for name, state in states.items():
            if state.status in {ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY}:
                raise ConfigError(f"The application {name} failed: {state.message}")
        if len(states) == len(names) and all(s.status == ApplicationStatus.RUNNING for s in states.values()):
            return
        if time.monotonic() > until:
            raise ConfigError(f"The applications did not start within {timeout_s:g} s.")
        time.sleep(POLL_S)


COMMAND = Command("deploy", "run the server on a cluster of Ray", _configure, _run)
