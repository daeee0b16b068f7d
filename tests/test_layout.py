"""Where code may lie, who may import whom, and what an import may cost."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = {
    "platform": "quire",
    "kernels": "quire_kernels",
    "models": "quire_models",
    "adapters": "quire_adapters",
    "plugins": "quire_plugins",
}
OURS = tuple(SOURCE_ROOTS.values())

MAX_LINES = 300

# --- layers ----------------------------------------------------------------------------------------

CONTRACT = {
    "quire",
    *(
        f"quire.{name}"
        for name in ("errors", "sampling", "structured", "pooling", "types", "records", "hookspecs", "config")
    ),
    "quire.adapter_info",
    "quire.server_config",
    "quire.setting",
    "quire.source_info",
    "quire.child_process",
    "quire.files",
    "quire.idle_thread",
    "quire.isolated_calls",
    "quire.isolated_process",
    "quire.isolation",
    "quire.near_names",
    "quire.from_vllm.arguments",
    "quire.from_vllm.variables",
    "quire.stats",
}
LOADING = {
    "quire.adapter_sources",
    "quire.discovery",
    "quire.calls",
    "quire.counting",
    "quire.demos",
    "quire.log_format",
    "quire.plugin_options",
    "quire.plugins_off",
    "quire.registry",
}
ENGINE = {"quire.engine", "quire.hub"}
FLAGS = {"quire.flag_parser", "quire.setting_groups", "quire.yaml_settings"}
CLIENT = {"quire.host.client", "quire.host.settings"}
LLM = {"quire.llm", "quire.llm_chat", "quire.llm_open", "quire.llm_pooling", "quire.llm_requests", "quire.llm_speech"}
MODELS = {"quire_models", "quire_kernels"}

MAY_IMPORT = {
    # the longest prefix of a module's name is its row; `quire` alone means what it exports
    "quire_kernels": set(),
    "quire_models": CONTRACT | {"quire_kernels"},
    "quire_adapters": CONTRACT | MODELS,
    "quire_plugins": CONTRACT | MODELS,
    "quire": CONTRACT,
    **dict.fromkeys(LOADING, CONTRACT | LOADING),
    "quire.engine": CONTRACT | MODELS | {"quire.hub", "quire.counting"},
    "quire.hub": CONTRACT,
    "quire.media": CONTRACT,
    "quire.text": CONTRACT | {"quire.counting", "quire.media"},
    "quire.host": CONTRACT | LOADING | ENGINE | {"quire.text"},
    **dict.fromkeys(LLM, CONTRACT | LOADING | ENGINE | LLM | {"quire.text", "quire.media", "quire.engine_api"}),
    "quire.engine_api": CONTRACT | LLM | {"quire.text", "quire.options", "quire.engine_api"},
    "quire.inputs": CONTRACT,
    "quire.sampling_params": CONTRACT,
    "quire.lora": CONTRACT,
    "quire.entrypoints.chat_utils": {"quire.text"},
    "quire.server": CONTRACT | LOADING | {"quire.text", "quire.media", "quire.hub"} | CLIENT,
    "quire.testing": CONTRACT | LOADING | ENGINE | MODELS | {"quire.text"},
    "quire.options": CONTRACT | LOADING | FLAGS | {"quire.from_vllm.flags"},
    **dict.fromkeys(FLAGS, CONTRACT | FLAGS),
    "quire.from_vllm.flags": CONTRACT,
}


ON_TOP = ("quire.cli", "quire.commands", "quire.entrypoints.openai")
"""May import anything, and nobody imports them."""


def modules() -> Iterator[tuple[str, Path]]:
    for root, package in SOURCE_ROOTS.items():
        for file in sorted((ROOT / root / package).rglob("*.py")):
            parts = file.relative_to(ROOT / root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(imported module, whether at module level and at run time)."""
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
        for imported, _ in imports(ast.parse(file.read_text()))
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
        for imported, at_run_time in imports(ast.parse(file.read_text()))
        if is_ours(imported) and at_run_time and package(imported) != package(name)
    }
    assert not [pair for pair in pairs if pair[::-1] in pairs]


def test_only_the_registry_and_the_hookspecs_know_pluggy() -> None:
    users = {
        name for name, file in modules() for i, _ in imports(ast.parse(file.read_text())) if i.startswith("pluggy")
    }
    assert users == {"quire.hookspecs", "quire.registry"}


def test_the_platform_names_no_plugin_module() -> None:
    wrong = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "platform").rglob("*.py")
        if "quire_plugins" in file.read_text() or "quire_adapters" in file.read_text()
    ]
    assert not wrong


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_a_source_root_holds_one_package_and_no_loose_module(root: str) -> None:
    entries = {p.name for p in (ROOT / root).iterdir() if p.name != "__pycache__"}
    assert entries == {SOURCE_ROOTS[root]}


def test_tests_are_loose_modules() -> None:
    assert not (ROOT / "tests" / "__init__.py").exists()


def test_files_stay_short() -> None:
    lines = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for _, f in modules()}
    assert not {name: n for name, n in lines.items() if n > MAX_LINES}


def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name, file in modules()
        if file.read_text().strip() and not ast.get_docstring(ast.parse(file.read_text()))
    ]
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
        "from quire.registry import installed; installed()",
        "from quire.registry import listing, load; listing(load())",
        "from quire.registry import load; load(enable_lora=True)",
    ],
)
def test_listing_plugins_imports_nothing_heavy(code: str) -> None:
    assert run(f"{code}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])") == "[]"


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
        if module.name != "quire_kernels.triton_low_rank":  # the one that needs Triton, for GPUs
            importlib.import_module(module.name)
from quire.registry import load
load()
"""


def test_the_engine_needs_none_of_the_libraries_of_the_server() -> None:
    run(BLOCK)
