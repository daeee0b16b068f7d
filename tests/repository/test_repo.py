"""The repository itself: what is in it, and what must not be."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("setup", "serve", "test", "check", "fmt")


def files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in files():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    folders = ["work", "root", "opt/pypi", "Users"]
    pattern = re.compile("|".join(rf"(?<![\w.$}}])/{folder}/" for folder in folders))
    assert not [(name, m.group()) for name, text in texts() if (m := pattern.search(text))]


def test_no_file_names_a_package_index() -> None:
    pattern = re.compile("|".join([r"--index-url [a-z]", "files.python" + "hosted", "download.py" + "torch.org"]))
    assert not [name for name, text in texts() if pattern.search(text)]


def test_no_file_is_huge() -> None:
    assert not [str(p) for p in files() if p.stat().st_size > 16 << 20]


@pytest.mark.parametrize("target", TARGETS)
def test_the_makefile_has_the_target_and_it_sets_up_the_environment_by_itself(target: str) -> None:
    line = re.search(rf"^{target}:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line
    assert "STAMP)" in line.group(1)


def test_continuous_integration_is_executable_and_runs_checks_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert {"make check", "make test || make test-failed"} <= set(script.read_text().splitlines())


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    for name, pin in constraints().items():
        assert pin.url is None, name
        assert [spec.operator for spec in pin.specifier] == ["=="], name


def test_constraints_pin_every_direct_dependency_to_a_version_it_allows() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    pins = constraints()
    for text in PROJECT["project"]["dependencies"] + extras["dev"] + extras["client"]:
        wanted = Requirement(text)
        pin = pins[canonicalize_name(wanted.name)]
        version = next(iter(pin.specifier)).version
        assert wanted.specifier.contains(version), f"{wanted} but {pin}"


def test_every_entry_point_of_ours_names_a_module_of_ours() -> None:
    groups = PROJECT["project"]["entry-points"]
    for name, module in groups["quire"].items():
        path = module.split(":")[0].replace(".", "/")
        roots = ("platform", "plugins", "adapters")
        assert any((ROOT / r / f"{path}{end}").exists() for r in roots for end in (".py", "/__init__.py")), name
    assert groups["quire.essential"].items() <= groups["quire"].items()
    assert groups["quire.adapters"].items() <= groups["quire"].items()
    assert groups["quire.commands"].items() <= groups["quire.essential"].items()


def test_the_image_is_built_in_stages_and_runs_without_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE) == ["build", "runtime", "cpu", "cuda"]
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK", text, re.MULTILINE)
    assert "/health" in text
    cpu = text.partition(" AS cpu")[2].partition("\nFROM ")[0]
    assert "torch.version.cuda" in cpu, "the build of the target cpu fails with a torch that has CUDA"


def test_the_distribution_has_its_name_and_its_facts() -> None:
    facts = PROJECT["project"]
    assert facts["name"] == "quire-serve"
    assert facts["authors"]
    assert "Operating System :: POSIX :: Linux" in facts["classifiers"]


def test_no_text_installs_the_package_of_another_project() -> None:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "platform").rglob("*.py")):
        assert not re.search(r"pip install (-\S+ )*['\"]?quire(\[|['\"\s]|$)", path.read_text()), path


def test_the_extra_all_is_every_extra_that_users_may_want() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for_gpus = ("xformers", "flashinfer", "flash-attn")
    wanted = {one for name, packages in extras.items() if name not in ("all", "dev", *for_gpus) for one in packages}
    assert {*extras["all"]} == wanted


def test_serving_installs_no_tools_for_developers_and_says_what_it_does() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("$(SERVE_STAMP): ")[2].partition("\n\n")[0]
    assert ".[client]" in recipe
    assert "[dev]" not in recipe
    assert "$(INSTALL) -e" in recipe, "pip shows its progress"


def test_the_changelog_says_what_is_unreleased() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()
