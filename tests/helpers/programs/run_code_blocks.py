"""Runs the blocks of Python of a page of the documentation, one after the other, in the working directory.

Standard input: JSON, a list of pairs of source and place. After the output of each block follows a line with NUL.
Functions whose names begin with test_ are called, with an empty folder if they take an argument.
"""

import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, ".")
names: dict[str, Any] = {}
for source, place in json.load(sys.stdin):
    exec(compile(source, place, "exec"), names)
    for name, test in [*names.items()]:
        if name.startswith("test_"):
            test(*([Path(tempfile.mkdtemp())] if inspect.signature(test).parameters else []))
            del names[name]
    print("\0")
