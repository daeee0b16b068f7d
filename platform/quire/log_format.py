"""The log format of the server, the engine process and the HTTP library."""

from __future__ import annotations

import logging

FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"
TIME = "%H:%M:%S"


def log_to_stderr(level: str = "warning") -> None:
    """Send log records to stderr; `level` applies to loggers without a level of their own."""
    logging.basicConfig(level=level.upper(), format=FORMAT, datefmt=TIME)
