"""`python -m quire.entrypoints.openai.api_server ...` is `platform serve ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the process is asked to end; the exit status."""
    from quire.cli import main as platform

    return platform(["serve", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
