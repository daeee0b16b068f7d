"""The files of examples/deployment agree with the rest of the repository."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cli import main
from quire.settings.server_config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "deployment"
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def test_files_that_containers_mount_exist_and_volumes_are_declared() -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    mounts = [mount.split(":")[0] for service in services.values() for mount in service["volumes"]]
    assert len(mounts) > 5
    for source in mounts:
        assert (FOLDER / source).is_file() if source.startswith(".") else source in volumes, source


def test_the_image_is_a_target_of_the_dockerfile_with_its_arguments() -> None:
    build = compose()["services"]["quire"]["build"]
    dockerfile = (FOLDER / build["context"] / "Dockerfile").read_text()
    assert re.search(rf"^FROM \w+ AS {build['target']}$", dockerfile, re.MULTILINE)
    assert set(build["args"]) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed")
def test_the_dockerfile_has_no_finding_of_hadolint() -> None:
    found = subprocess.run([HADOLINT, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_prometheus_reads_quire_by_the_name_of_its_container_and_the_rules_that_are_mounted() -> None:
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    ((target,),) = (each["targets"] for each in settings["scrape_configs"][0]["static_configs"])
    name, port = target.split(":")
    assert f"{port}:{port}" in compose()["services"][name]["ports"]
    mounted = [mount.split(":")[1] for mount in compose()["services"]["prometheus"]["volumes"]]
    assert all(f"/etc/prometheus/{file}" in mounted for file in settings["rule_files"])


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert source["url"].startswith("http://prometheus:")
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text())["providers"]
    mounts = dict(mount.split(":")[:2] for mount in compose()["services"]["grafana"]["volumes"])
    (dashboard,) = (source for source, target in mounts.items() if target.startswith(provider["options"]["path"]))
    assert json.loads((FOLDER / dashboard).read_text())["panels"]


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / "quire.service")
    return parser


def test_the_unit_gives_a_shutdown_more_time_than_the_server_takes(unit: configparser.ConfigParser) -> None:
    grace = int(compose()["services"]["quire"]["stop_grace_period"].removesuffix("s"))
    assert min(grace, int(unit["Service"]["TimeoutStopSec"])) > ServerConfig().shutdown_timeout_s + 8


def test_the_command_of_the_unit_parses(unit: configparser.ConfigParser, tmp_path: Path, capsys: Any) -> None:
    _, command, *words = shlex.split(unit["Service"]["ExecStart"])
    (tmp_path / "serve.yaml").write_text("port: 8000\nbogus-key: 1\n")
    words[words.index("--config") + 1] = str(tmp_path / "serve.yaml")
    with pytest.raises(SystemExit):
        main([command, *words])
    assert "bogus-key" in capsys.readouterr().err, "the command line is right: only the file's key is wrong"
