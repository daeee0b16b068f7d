"""Declares the deployments of the application from the arguments of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.ray.autoscaling import TARGET_KV_USAGE, QueueAndKvPolicy
from quire.ray.ingress import Ingress
from quire.ray.replica import Replica
from quire.ray.router import ReplicaRouter
from quire.ray.settings import read_settings
from quire.routing.chosen_policy import check_policy

ARGS = ("serve", "replica", "ingress", "routing", "cache_tokens", "target_kv_usage")
CACHE_TOKENS = 400_000
MAX_ONGOING = 256
"""Requests that a replica has at the same time; its engine schedules them."""

HEALTH = {"health_check_period_s": 2.0, "health_check_timeout_s": 4.0}
"""A replica that does not answer three checks in a row is replaced."""

INGRESS_ONGOING = 4096


def application(args: Mapping[str, Any]) -> serve.Application:
    """Replicas behind an ingress, with the arguments that docs/scale/ray.md describes. Raises ConfigError."""
    if unknown := sorted(set(args) - set(ARGS)):
        raise ConfigError(f"quire.ray:build_app has no argument {unknown[0]!r}; it has {', '.join(ARGS)}.")
    given = _mapping(args, "serve")
    served = read_settings(given)
    ingress = {
        "max_ongoing_requests": INGRESS_ONGOING,
        "ray_actor_options": {"num_cpus": 0},
        **_mapping(args, "ingress"),
    }
    replica = {
        "max_ongoing_requests": MAX_ONGOING,
        **HEALTH,
        "graceful_shutdown_timeout_s": served.config.shutdown_timeout_s,
        **_mapping(args, "replica"),
    }
    if scaling := replica.get("autoscaling_config"):
        replica["autoscaling_config"] = {"policy": _scaling_policy(args), **scaling}
    elif "target_kv_usage" in args:
        raise ConfigError("target_kv_usage is for replicas with an autoscaling_config.")
    names = [name for model in served.models for name in model.served_model_name]
    slots = max((model.max_loras for model in served.models), default=1)
    replica["request_router_config"] = _router_config(args, names, slots, served.plugins)
    try:
        replicas = serve.deployment(Replica).options(name="Replica", **replica).bind(dict(given))
        front = serve.deployment(serve.ingress()(Ingress)).options(name="Ingress", **ingress)
        return front.bind(replicas, served.config.max_body_bytes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Ray Serve refuses the options of a deployment: {error}") from error


def _mapping(args: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = args.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"The argument {name} of quire.ray:build_app must be a map; got {value!r:.80}.")
    return value


def _scaling_policy(args: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{QueueAndKvPolicy.__module__}:{QueueAndKvPolicy.__name__}"
    target = args.get("target_kv_usage", TARGET_KV_USAGE)
    return {"policy_function": name, "policy_kwargs": {"target_kv_usage": target}}


def _router_config(args: Mapping[str, Any], models: list[str], slots: int, plugins: Any) -> RequestRouterConfig:
    policy = args.get("routing", "prefix")
    check_policy(load(plugins), policy)
    cache_tokens = args.get("cache_tokens", CACHE_TOKENS)
    return RequestRouterConfig(
        request_router_class=ReplicaRouter,
        request_router_kwargs={
            "policy": policy,
            "models": models,
            "cache_tokens": cache_tokens,
            "adapter_slots": slots,
            "plugins": list(plugins) if plugins is not None else None,
        },
    )
