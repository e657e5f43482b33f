"""The distributions as a user gets them: built as wheels, and installed in an environment that has nothing else."""

from __future__ import annotations

import email
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = {
    "stentor": ROOT,
    "stentor_vault": ROOT / "packages" / "stentor-vault",
    "stentor_worker": ROOT / "packages" / "stentor-worker",
}
EXTRAS = "postgres,grpc,otel,nats"
MODULES = {
    "stentor": ["stentor.cli.main", "stentor.bootstrap", "psycopg", "grpc", "opentelemetry.sdk", "nats"],
    "stentor_vault": ["stentor_vault.command"],
    "stentor_worker": ["stentor_worker"],
}


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of each project, built without the network."""
    folder = tmp_path_factory.mktemp("wheels")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, *PROJECTS.values())
    return folder


def metadata(wheels: Path, project: str) -> email.message.Message:
    [wheel] = wheels.glob(f"{project}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.parametrize("project", PROJECTS)
def test_a_wheel_has_the_package_its_licence_and_nothing_of_the_tests(wheels: Path, project: str) -> None:
    [wheel] = wheels.glob(f"{project}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert f"{project}/__init__.py" in names
    assert f"{project}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {project, wheel.name.split("-py3")[0] + ".dist-info"}


def test_the_worker_needs_no_library_and_the_service_needs_both_packages(wheels: Path) -> None:
    required = metadata(wheels, "stentor_worker").get_all("Requires-Dist") or []
    assert [name for name in required if "extra ==" not in name] == []
    assert metadata(wheels, "stentor_worker")["Requires-Python"] == ">=3.10"
    required = metadata(wheels, "stentor").get_all("Requires-Dist") or ()
    for package in ("stentor-vault", "stentor-worker"):
        assert f"{package}<0.3,>=0.2" in required
        assert metadata(wheels, package.replace("-", "_"))["Version"].startswith("0.2")


@pytest.mark.slow
@pytest.mark.parametrize("project", PROJECTS)
def test_a_wheel_installs_in_an_empty_environment_and_runs(wheels: Path, project: str, tmp_path: Path) -> None:
    [wheel] = wheels.glob(f"{project}-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    target = f"{wheel}[{EXTRAS}]" if project == "stentor" else wheel
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--find-links", wheels, target)
    for module in MODULES[project]:
        run(python, "-I", "-c", f"import {module}")
    if project == "stentor":
        assert run(tmp_path / "env" / "bin" / "stentor", "--version").startswith("stentor ")
    if project == "stentor_vault":
        assert run(tmp_path / "env" / "bin" / "stentor-vault", "--version").startswith("stentor-vault ")
