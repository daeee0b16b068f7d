"""Counts the lines that a newcomer must read to understand a step of the engine.

python tests/repository/core_lines.py    lines of each folder and in all; exit status 1 if there are more than 4,500
"""

from __future__ import annotations

import sys
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "platform" / "quire" / "engine"
CORE = {".": "*.py", "scheduler": "**/*.py", "runner": "**/*.py", "sampling": "**/*.py", "loading": "**/*.py"}
"""Folders of the engine, and which of their files belong to the core."""
MAX_LINES = 4500


def lines_by_folder() -> dict[str, int]:
    return {
        folder: sum(len(file.read_text().splitlines()) for file in (ENGINE / folder).glob(pattern))
        for folder, pattern in CORE.items()
    }


def main() -> int:
    lines = lines_by_folder()
    for folder, count in lines.items():
        print(f"{count:6,}  {(ENGINE / folder).relative_to(ENGINE.parents[2])}")
    total = sum(lines.values())
    print(f"{total:6,}  in all, {MAX_LINES:,} at most")
    return int(total > MAX_LINES)


if __name__ == "__main__":
    sys.exit(main())
