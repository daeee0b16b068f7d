"""Where code may lie, who may import whom, and what an import may cost."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from core_lines import MAX_LINES as MAX_CORE_LINES, lines_by_folder
from structure import Finding, import_circles, large_folders, long_files, parsed, repeated_classes, tracked

import quire

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = {
    "platform": ("quire",),
    "kernels": ("quire_kernels",),
    "models": ("quire_models",),
    "adapters": ("quire_adapters",),
    "plugins": (
        "quire_plugins",
        "quire_apis",
        "quire_demos",
        "quire_drafters",
        "quire_adapter_tools",
        "quire_batches",
        "quire_bench",
        "quire_quantize",
        "quire_page",
        "quire_testing",
    ),
}
OURS = tuple(package for packages in SOURCE_ROOTS.values() for package in packages)

# --- layers ----------------------------------------------------------------------------------------

CONTRACT = {
    "quire",
    "quire.errors",
    "quire.files",
    "quire.from_vllm.arguments",
    "quire.from_vllm.variables",
    "quire.hooks.hookspecs",
    "quire.isolation",
    "quire.params",
    "quire.records",
    "quire.settings.kv_events_config",
    "quire.settings.model_config",
    "quire.settings.model_values",
    "quire.settings.near_names",
    "quire.settings.rank_config",
    "quire.settings.residency_config",
    "quire.settings.server_config",
    "quire.settings.setting",
    "quire.settings.speculative_config",
    "quire.types",
}
HOOKS = {"quire.hooks", "quire.log_format"}
ENGINE = {"quire.engine", "quire.hub"}
ROUTING = {"quire.routing"}
CLIENT = {
    "quire.engine_process.client",
    "quire.engine_process.replicas.client",
    "quire.engine_process.settings",
    "quire.engine_process.wire.memory_plan",
    "quire.engine_process.wire.process_source",
    "quire.engine_process.wire.spawn",
}
MODELS = {"quire_models", "quire_kernels"}

MAY_IMPORT = {
    # the longest prefix of a module's name is its row; `quire` alone means what it exports
    "quire_kernels": set(),
    "quire_models": CONTRACT | {"quire_kernels"},
    "quire.plugin": CONTRACT | MODELS,
    "quire_adapters": CONTRACT | MODELS | {"quire.plugin"},
    "quire_plugins": CONTRACT | MODELS | {"quire.plugin", "quire_demos"},
    "quire_apis": CONTRACT | {"quire.plugin"},
    "quire_batches": CONTRACT | {"quire.plugin"},
    "quire_demos": set(),
    "quire_drafters": CONTRACT
    | MODELS
    | {"quire.plugin", "quire.engine.sampling.rng", "quire.engine.speculation.distribution"},
    "quire_page": {"quire.plugin"},
    "quire_testing": CONTRACT | HOOKS | ENGINE | MODELS | ROUTING | {"quire.text"},
    "quire": CONTRACT,
    "quire.hooks": CONTRACT | HOOKS,
    "quire.log_format": CONTRACT,
    "quire.settings": CONTRACT | HOOKS | {"quire.from_vllm.flags"},
    "quire.from_vllm.flags": CONTRACT,
    "quire.hub": CONTRACT | {"quire_models.gguf"},
    "quire.media": CONTRACT,
    "quire.text": CONTRACT | {"quire.hooks.call_stats", "quire.media"},
    "quire.engine": CONTRACT | MODELS | {"quire.hub", "quire.hooks.call_stats"},
    "quire.routing": CONTRACT,
    "quire.engine_process": CONTRACT | HOOKS | ENGINE | ROUTING | {"quire.text"},
    "quire.llm": CONTRACT | HOOKS | ENGINE | {"quire.text", "quire.media", "quire.engine_api"},
    "quire.engine_api": CONTRACT | {"quire.llm", "quire.text", "quire.settings.options"},
    "quire.inputs": CONTRACT,
    "quire.sampling_params": CONTRACT,
    "quire.lora": CONTRACT,
    "quire.entrypoints.chat_utils": {"quire.text"},
    "quire.server": CONTRACT | HOOKS | {"quire.text", "quire.media", "quire.hub"} | CLIENT | ROUTING,
}

ON_TOP = (
    "quire.cli",
    "quire.commands",
    "quire.entrypoints.openai",
    "quire.ray",
    "quire_adapter_tools",
    "quire_bench",
    "quire_quantize",
)
"""These may import anything, and no other module imports them."""


def modules() -> Iterator[tuple[str, Path]]:
    for root, packages in SOURCE_ROOTS.items():
        for file in sorted(file for package in packages for file in (ROOT / root / package).rglob("*.py")):
            parts = file.relative_to(ROOT / root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


@cache
def imports(file: Path) -> list[tuple[str, bool]]:
    """(imported module, whether at module level and at run time)."""
    return list(imports_in(parsed(str(file.relative_to(ROOT)))))


def imports_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    lazy = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from ((f"{node.module}.{alias.name}", node not in lazy) for alias in node.names)


def is_ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in OURS


def allowed(name: str) -> set[str]:
    row = max((row for row in MAY_IMPORT if name == row or name.startswith(f"{row}.")), key=len)
    return MAY_IMPORT[row] | {row}


def within(imported: str, packages: set[str]) -> bool:
    if imported == "quire" or imported.removeprefix("quire.") in quire.__all__:
        return "quire" in packages
    return any(imported == package or imported.startswith(f"{package}.") for package in packages - {"quire"})


def test_every_import_is_one_that_its_layer_allows() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, file in modules()
        for imported, _ in imports(file)
        if is_ours(imported) and not name.startswith(ON_TOP) and name != "quire"
        if not within(imported, allowed(name))
    ]
    assert not wrong


def test_no_two_packages_import_each_other() -> None:
    def package(name: str) -> str:
        return ".".join(name.split(".")[:2]) if name.startswith("quire.") else name.split(".", maxsplit=1)[0]

    pairs = {
        (package(name), package(imported))
        for name, file in modules()
        for imported, at_run_time in imports(file)
        if is_ours(imported) and at_run_time and package(imported) != package(name)
    }
    assert not [pair for pair in pairs if pair[::-1] in pairs]


def test_only_the_registry_and_the_hookspecs_know_pluggy() -> None:
    users = {name for name, file in modules() for i, _ in imports(file) if i.startswith("pluggy")}
    assert users == {"quire.hooks.hookspecs", "quire.hooks.registry"}


def test_the_platform_names_no_plugin_module() -> None:
    files = (ROOT / "platform").rglob("*.py")
    assert not [str(f) for f in files if "quire_plugins" in (t := f.read_text()) or "quire_adapters" in t]


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_a_source_root_holds_packages_and_no_loose_module(root: str) -> None:
    entries = {p.name for p in (ROOT / root).iterdir() if p.name != "__pycache__"}
    assert entries == set(SOURCE_ROOTS[root])


def test_tests_are_loose_modules() -> None:
    assert not (ROOT / "tests" / "__init__.py").exists()


@pytest.mark.parametrize("measure", [large_folders, long_files, import_circles, repeated_classes])
def test_the_structure_keeps_its_limits(measure: Callable[[list[str]], Iterator[Finding]]) -> None:
    assert not list(measure(tracked()))


def test_the_core_of_the_engine_stays_small() -> None:
    assert sum(lines_by_folder().values()) <= MAX_CORE_LINES


def test_every_module_and_package_says_what_it_is() -> None:
    silent = [name for name, file in modules() if not ast.get_docstring(parsed(str(file.relative_to(ROOT))))]
    assert not silent


# --- what an import costs --------------------------------------------------------------------------


def run(code: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_standard_platform_and_uuid_modules_work_in_the_repository_root() -> None:
    assert run("import platform, uuid; print(platform.python_version(), uuid.uuid4().version)").endswith(" 4")


@pytest.mark.parametrize("name", [*SOURCE_ROOTS])
def test_the_folders_never_shadow_a_real_module(name: str) -> None:
    code = f"import importlib.util as u; s = u.find_spec({name!r}); print(s is not None and s.origin is not None)"
    shadowed = run(code, ROOT)
    assert shadowed == run(code, ROOT / "tests" / "data")


def test_transformers_does_not_take_our_kernels_folder_for_the_library_of_that_name(tmp_path: Path) -> None:
    code = "from transformers.utils import is_kernels_available; print(is_kernels_available())"
    assert run(code, ROOT) == run(code, tmp_path)


HEAVY = "('torch', 'transformers', 'fastapi', 'numpy', 'triton', 'huggingface_hub')"


@pytest.mark.parametrize(
    "code",
    [
        "import quire",
        "from quire import hookimpl, Architecture, SamplingParams",
        "from quire.hooks.registry import installed; installed()",
        "from quire.hooks.registry import listing, load; listing(load())",
        "from quire.hooks.registry import load; load(enable_lora=True)",
    ],
)
def test_listing_plugins_imports_nothing_heavy(code: str) -> None:
    assert run(f"{code}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])") == "[]"


MORE_THAN_HELP_NEEDS = "('torch', 'numpy', 'httpx', 'yaml', 'configargparse', 'rich', 'asyncio', 'quire_models')"


@pytest.mark.parametrize("code", ["import quire", "import quire.cli", "from quire.cli import main; main(['--help'])"])
def test_help_imports_only_what_it_prints(code: str) -> None:
    found = run(f"{code}\nimport sys\nprint([m for m in {MORE_THAN_HELP_NEEDS} if m in sys.modules])")
    assert found.splitlines()[-1] == "[]"


BLOCK = """
import importlib, pkgutil, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        blocked = {"fastapi", "starlette", "pydantic", "zmq", "msgspec", "uvicorn", "httpx", "openai", "triton"}
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked by this test", name=name)

sys.meta_path.insert(0, Missing())
for package in ("quire_kernels", "quire_models", "quire_adapters", "quire_plugins", "quire.engine"):
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        needs_triton = module.name.startswith("quire_kernels.triton_gpu.")  # for GPUs
        if not needs_triton or module.name == "quire_kernels.triton_gpu.ops":
            importlib.import_module(module.name)
from quire.hooks.registry import load
load()
"""


def test_the_engine_needs_none_of_the_libraries_of_the_server() -> None:
    run(BLOCK)
