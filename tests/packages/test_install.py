"""The set-up's installer: which settings of pip reach uv, and when pip is used instead."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "requirements" / "install.py"


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, with a pip that has no configuration."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_uv_finds_the_other_packages_in_the_checkout() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = {name.partition(">")[0] for name in project["project"]["dependencies"] if name.startswith("stentor-")}
    sources = {
        name: tomllib.loads((ROOT / source["path"] / "pyproject.toml").read_text())["project"]["name"]
        for name, source in project.get("tool", {}).get("uv", {}).get("sources", {}).items()
    }
    assert sources == {name: name for name in own}


def test_mirrors_of_pip_are_passed_to_uv(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nextra-index-url = https://a.test/simple https://b.test/simple\ntimeout = 5\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.test/simple")
    environment = installer.uv_environment()
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.test/simple"
    assert environment["UV_INDEX"] == "https://a.test/simple https://b.test/simple"


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["PIP_NO_INDEX", "PIP_PROXY", "PIP_CLIENT_CERT"])
def test_pip_installs_where_it_has_a_setting_that_uv_does_not(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    assert installer.uv_environment() is not None
    monkeypatch.setenv(variable, "1")
    assert installer.uv_environment() is None


@pytest.mark.slow
def test_pip_installs_where_uv_fails(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither can install this, and the error that is shown is pip's."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert installer.main(["--no-deps", "stentor-no-such-package==1"]) == 1
    shown = capfd.readouterr().err
    assert "No matching distribution" in shown
    assert shown.endswith("The same command continues the set-up.\n")


def test_ctrl_c_ends_the_set_up_without_a_traceback(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: list[str]) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(installer, "install_with_uv", interrupted)
    assert installer.main([]) == 130
    assert "Stopped." in capsys.readouterr().err
