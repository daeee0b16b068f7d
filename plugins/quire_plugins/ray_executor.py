"""Ranks as actors of a Ray cluster, in a placement group: `--distributed-executor-backend ray`.

The first rank is in the engine process, which joins the cluster as a driver; what it reserves ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from quire.plugin import ConfigError, Executor, ExecutorContext, RankProgram, hookimpl

FLAG = "--distributed-executor-backend ray"
NODE_LABEL = "ray.io/node-id"

IN_WORKER = "RAY_RAYLET_PID"
"""A variable of the processes that Ray starts. This one then has its CPUs already, as a replica of Ray Serve has."""


class RankActor:
    """An actor whose process runs one rank. The rank ends with the first one, and the actor with it."""

    def run(self, program: RankProgram) -> int:
        """Returns the exit status of a rank that cannot start."""
        os.environ.update(program.environment)  # before torch is imported
        return program.run()


class RayRank:
    """A `StartedRank`. result: what `RankActor.run` will return. reservation: shared by the ranks of the model."""

    def __init__(self, actor: Any, result: Any, reservation: Reservation) -> None:
        self._actor, self._result, self._reservation = actor, result, reservation

    def problem(self) -> str | None:
        """What Ray says of an actor that has ended."""
        import ray
        from ray.exceptions import RayError

        if not ray.wait([self._result], timeout=0)[0]:
            return None
        try:
            return f"its Ray actor has the exit status {ray.get(self._result)}, and has logged why."
        except RayError as error:
            return f"{error}"

    def end(self) -> None:
        """Kill the process of the actor, and free the placement group."""
        import ray

        ray.kill(self._actor)
        self._reservation.free()


class Reservation:
    """A placement group with a bundle for each rank. local: ranks on this machine, the first one included."""

    def __init__(self, context: ExecutorContext) -> None:
        """Raises ConfigError if the cluster has no room for it in time."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table

        here = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        self.cpus = max(1, context.threads // -(-context.size // max(1, len(nodes))))
        self._first = 1 if IN_WORKER in os.environ else 0
        count = context.size - self._first
        bundles: list[dict[str, float]] = [{"CPU": self.cpus}] * count
        labels: list[dict[str, str]] = [{}] * count
        if not self._first:
            labels[0] = {NODE_LABEL: here}
        self._group = placement_group(bundles, strategy="SPREAD", bundle_label_selector=labels)
        if not self._group.wait(context.timeout_s):
            self.free()
            free, all_cpus = (found.get("CPU", 0.0) for found in (ray.available_resources(), ray.cluster_resources()))
            raise ConfigError(
                f"{FLAG}: the cluster had no room for {context.size} ranks with {self.cpus} CPUs each within "
                f"{context.timeout_s:g} s (--distributed-timeout-s): {free:g} of its {all_cpus:g} CPUs on {len(nodes)} "
                "machines are free."
            )
        places = placement_group_table(self._group)["bundles_to_node_id"].values()
        self.local = self._first + sum(place == here for place in places)

    def place(self, rank: int) -> Any:
        """Where the actor of a rank runs."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, rank - self._first)

    def free(self) -> None:
        """Return the reserved cores and memory to the cluster."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)


class RayExecutor:
    """Reserves room for the ranks of a model, and starts an actor for each."""

    def __init__(self, context: ExecutorContext) -> None:
        """Join the cluster, and reserve room for the ranks. Raises ConfigError."""
        ray = _joined()
        self._reservation = Reservation(context)
        self.local = self._reservation.local
        self.address: str = ray.util.get_node_ip_address()

    def start(self, program: RankProgram) -> RayRank:
        """An actor in the bundle of the rank."""
        import ray

        reservation = self._reservation
        options = {"num_cpus": reservation.cpus, "scheduling_strategy": reservation.place(program.rank)}
        actor = ray.remote(RankActor).options(**options).remote()
        return RayRank(actor, actor.run.remote(program), reservation)


def _joined() -> Any:
    """The library, once this process is part of a cluster. Raises ConfigError."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"{FLAG} needs Ray: pip install 'quire-serve[ray]'.") from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", configure_logging=False)
        except ConnectionError as error:
            raise ConfigError(
                f"{FLAG}: this machine is part of no cluster; start one with `ray start --head`, and have the other "
                f"machines join it with `ray start --address`: {error}"
            ) from error
    return ray


@hookimpl
def quire_executors() -> Iterable[Executor]:
    """Ranks as actors of Ray, by the name `ray`."""
    yield Executor("ray", RayExecutor)
