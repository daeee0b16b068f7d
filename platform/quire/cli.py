"""The `platform` command: errors become one line, and `--help` lists the commands.

`quire.commands.command_line` runs the commands. It is imported only for them, so that `platform --help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from quire import __version__
from quire.commands.overview import bundled_commands, overview
from quire.errors import QuireError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status. User errors are one line on stderr, with status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except QuireError as error:
        print(f"platform: error: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    if words in ([], ["-h"], ["--help"], ["help"]):
        print(overview(bundled_commands()))
        return 0
    if words in (["-V"], ["-v"], ["--version"], ["version"]):
        print(__version__)
        return 0
    if words[0] == "serve" and {"-h", "--help", "help"}.isdisjoint(words):
        return _serve(words)
    from quire.commands.command_line import run

    return run(words)


def _serve(words: list[str]) -> int:
    from quire.engine_process.wire.spawn import spawn

    spawned = spawn()  # it imports torch while plugins are loaded here, and flags are parsed
    try:
        from quire.commands.command_line import run

        return run(words, spawned)
    finally:
        spawned.close()


if __name__ == "__main__":
    sys.exit(main())
