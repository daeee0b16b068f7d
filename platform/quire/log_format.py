"""One format for the log lines of the server, of the process that runs the models, and of the HTTP library."""

from __future__ import annotations

import logging

FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"
TIME = "%H:%M:%S"


def log_to_stderr(level: str = "warning") -> None:
    """Send log records to stderr; `level` is that of loggers without one of their own."""
    logging.basicConfig(level=level.upper(), format=FORMAT, datefmt=TIME)
