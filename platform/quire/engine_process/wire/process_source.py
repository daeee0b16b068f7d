"""Where a supervisor gets its engine processes from: new ones, or one that was started ahead and has imported all."""

from __future__ import annotations

from quire.engine_process.wire.spawn import MODULE, SpawnedProcess, spawn


class ProcessSource:
    """Starts engine processes that run `module`. Several supervisors may share one.

    keeps_one: a process that waits for its first message is kept, so that a lost one is replaced without the seconds
    that its imports take. It needs about as much memory as torch, and no CPU once it waits.
    """

    def __init__(self, module: str = MODULE, keeps_one: bool = False) -> None:
        self._module, self._keeps_one = module, keeps_one
        self._kept: SpawnedProcess | None = None

    def prepare(self) -> None:
        """Start the process that is kept, unless there is one."""
        if self._keeps_one and not self._is_kept_alive():
            self._kept = spawn(self._module)

    def take(self) -> SpawnedProcess:
        """A process that waits for its first message, or will."""
        kept, alive, self._kept = self._kept, self._is_kept_alive(), None
        if kept is not None and alive:
            return kept
        if kept is not None:
            kept.close()
        return spawn(self._module)

    def close(self) -> None:
        """End the process that is kept, and keep none any more."""
        self._keeps_one = False
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _is_kept_alive(self) -> bool:
        return self._kept is not None and self._kept.process.poll() is None
