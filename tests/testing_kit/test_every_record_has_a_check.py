"""There is a check for every kind of record, and docs/hooks.md names it beside the hook."""

import re
from pathlib import Path

import pytest

import quire_testing
from quire.records import RECORDS

HOOKS = Path(__file__).parents[2] / "docs" / "hooks.md"
SPECIAL = {
    "quire_ops": "check_op",
    "quire_scheduler_policies": "check_scheduler_policy",
    "quire_routing_policies": "check_routing_policy",
    "quire_resolve_adapter": "check_adapter_source",
}


@pytest.mark.parametrize("hook", [*RECORDS, "quire_resolve_adapter"])
def test_it_is_exported_and_documented(hook: str) -> None:
    check = SPECIAL.get(hook, f"check_{hook.removeprefix('quire_').removesuffix('s')}")
    assert callable(getattr(quire_testing, check))
    section = re.search(rf"^### {hook}$(.*?)(?=^##)", HOOKS.read_text() + "\n##", re.MULTILINE | re.DOTALL)
    assert section is not None
    assert f"`{check}" in section[1], f"{hook}: docs/hooks.md does not name {check}"
    assert f"| `{check}` |" in HOOKS.read_text()
