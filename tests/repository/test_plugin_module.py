"""`quire.plugin`: the one module that authors import from."""

import inspect
import subprocess
import sys

import quire.plugin
from quire import records

CODE = "import sys, quire.plugin; print(sorted({'torch', 'transformers', 'fastapi', 'numpy'} & set(sys.modules)))"


def test_it_exports_every_record_and_every_protocol() -> None:
    assert set(records.__all__) <= set(quire.plugin.__all__)
    exported = [getattr(quire.plugin, name) for name in quire.plugin.__all__]
    assert not [record for record in records.RECORDS.values() if record not in exported]


def test_records_export_all_their_public_classes() -> None:
    modules = [getattr(records, name) for name in vars(records) if inspect.ismodule(getattr(records, name))]
    public = {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public <= set(records.__all__)


def test_every_name_can_be_imported() -> None:
    assert not [name for name in quire.plugin.__all__ if getattr(quire.plugin, name, None) is None]


def test_importing_it_imports_no_torch() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
