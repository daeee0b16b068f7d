"""A plugin that brings one command; its dist-info lies beside it."""

from collections.abc import Iterator

from quire import Command, hookimpl


@hookimpl
def quire_commands() -> Iterator[Command]:
    yield Command("fake-command", "does nothing", configure=lambda parser: None, run=lambda args: 0)
