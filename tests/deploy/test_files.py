"""The files in deploy/: of the form that their programs read, and made of what Stentor really has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.core import settings
from stentor.core.settings.installation import PROCESS_ROLES
from stentor.surfaces.dashboard.api import HEALTH_PATH as DASHBOARD_HEALTH
from tests.deploy import described
from tests.deploy.described import COMPOSE, DEPLOY, DOCKERFILE, EXAMPLES, KUBERNETES, ROOT, UNIT
from tests.requirements import requirement
from tests.system import need

ROUTES = json.loads((ROOT / "docs" / "generated" / "openapi.json").read_text())["paths"]
COMPOSE_OWN = {"POSTGRES_PASSWORD", "STENTOR_IMAGE", "STENTOR_SITE", "DASHBOARD_ADDRESS", "GATEWAY_ADDRESS"}
VERSIONS = ("1.30", "1.33", "1.37")
"""Of Kubernetes: an old one, a usual one, a new one."""


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@requirement("scale.deploy-names-exist")
def test_every_variable_is_a_setting() -> None:
    known = described.known_variables()
    for container in described.containers():
        strange = {name for name in container.variables - known if not name.startswith("SERVICE_API_KEY_")}
        assert strange == set(), container.where
    assert {name for name in described.asked_for() - known if not name.startswith("SERVICE_API_KEY_")} == COMPOSE_OWN


@requirement("scale.deploy-names-exist")
def test_every_command_and_option_is_one_of_the_program() -> None:
    seen = set()
    for container in described.containers():
        used, known = described.options(container.words)
        assert set(used) <= known, container.where
        seen.add(container.words[0])
    assert seen == {"serve", "dashboard", "db", "keys"}


@requirement("scale.deploy-names-exist")
def test_roles_are_those_that_the_program_knows() -> None:
    named = {
        role
        for container in described.containers()
        if "--roles" in container.words
        for role in container.words[container.words.index("--roles") + 1].split(",")
    }
    assert named == {"gateway", "worker"}
    assert named <= set(PROCESS_ROLES)


@requirement("scale.deploy-names-exist")
def test_every_probe_asks_a_route_that_needs_no_key() -> None:
    asked = set()
    for name, pod in described.pods():
        for container in pod["containers"]:
            probes = [
                container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in container
            ]
            paths = {probe["httpGet"]["path"] for probe in probes if "httpGet" in probe}
            assert name != "stentor-dashboard" or paths == {DASHBOARD_HEALTH}
            asked |= paths
    asked |= set(re.findall(r"health_uri (\S+)", (DEPLOY / "caddy" / "Caddyfile").read_text()))
    asked |= set(re.findall(r"8080'\) \+ '(/\w+)'", DOCKERFILE.read_text()))
    assert asked == {"/health", "/api/v1/health/ready"}
    for path in asked:
        assert ROUTES[path]["get"]["x-permission"] == "public" or ROUTES[path]["get"].get("security") == [], path


@requirement("scale.deploy-names-exist")
def test_every_port_is_the_usual_one() -> None:
    usual = {settings.Settings().get(name) for name in settings.setting_infos() if name.endswith("port")}
    [exposed] = re.findall(r"^EXPOSE (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert {int(port) for port in exposed.split()} <= usual
    for _, pod in described.pods():
        for container in pod["containers"]:
            assert {port["containerPort"] for port in container.get("ports", ())} <= usual
    for service in described.of_kind("Service").values():
        assert {port["port"] for port in service["spec"]["ports"]} <= usual


@requirement("scale.deploy-image")
def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text(), re.MULTILINE):
        copied |= set(line.split()[:-1])
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


@requirement("scale.deploy-image")
def test_the_image_pins_what_it_installs_and_runs_as_nobody_special() -> None:
    text = DOCKERFILE.read_text()
    for line in text.replace("\\\n", " ").splitlines():
        for command in re.findall(r"pip install [^&]*", line):
            assert "--require-hashes" in command or "--no-index" in command
    assert re.findall(r"^(USER|STOPSIGNAL|VOLUME) (.*)$", text, re.MULTILINE) == [
        ("USER", "10001:10001"),
        ("VOLUME", "/data"),
        ("STOPSIGNAL", "SIGTERM"),
    ]
    assert 'CMD ["python3", "-m", "stentor.container_health"]' in text


@requirement("scale.deploy-image")
def test_the_pinned_requirements_are_what_the_extra_asks_for() -> None:
    """The image has no more than main.txt and postgres.txt, and they name each package in one version."""
    pins: dict[str, str] = {}
    for name in ("main", "postgres"):
        for package, version in re.findall(
            r"^([\w.-]+)==(\S+) \\$", (ROOT / "requirements" / f"{name}.txt").read_text(), re.M
        ):
            assert pins.setdefault(package, version) == version, package
    assert "psycopg" in pins


@pytest.mark.slow
@requirement("scale.deploy-compose")
def test_the_compose_file_is_one_that_compose_reads(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    # The program of Debian is older than the word `name`.
    text = re.sub(r"^name: .*\n", "", COMPOSE.read_text(), flags=re.MULTILINE)
    (tmp_path / "deploy" / "compose.yaml").write_text(text)
    values = dict.fromkeys(("POSTGRES_PASSWORD", "SERVICE_API_KEY_ADMIN", "DASHBOARD_API_KEY"), "x")
    command = [need("docker-compose"), "--file", str(tmp_path / "deploy" / "compose.yaml"), "config", "--quiet"]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    assert run(*command, env=environ | values) == ""
    for name in values:
        left = {key: value for key, value in values.items() if key != name}
        done = subprocess.run(command, env=environ | left, capture_output=True, text=True)
        assert (done.returncode != 0, name in done.stderr) == (True, True)


@requirement("scale.deploy-compose")
def test_every_container_of_the_compose_file_is_locked_down_and_waits_for_the_schema() -> None:
    services = described.compose()["services"]
    for name, one in described.ours().items():
        assert (one["read_only"], one["cap_drop"], one["tmpfs"]) == (True, ["ALL"], ["/tmp"]), name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert one["environment"]["SERVICE_MIGRATE_ON_START"] == "false", name
        waits = "postgres" if name == "prepare" else "prepare"
        assert list(one["depends_on"]) == [waits], name
        assert set(one) & {"ports"} == ({"ports"} if name == "dashboard" else set()), name
    used = {
        volume.split(":")[0] for one in services.values() for volume in one["volumes"] if not volume.startswith(".")
    }
    assert used == set(described.compose()["volumes"])
    data = [volume for one in services.values() for volume in one["volumes"] if volume.endswith(":/data")]
    assert len(data) == len(set(data)), "two containers share a data folder"


@requirement("scale.deploy-compose")
def test_the_two_gateways_are_those_that_the_balancer_knows() -> None:
    services = described.compose()["services"]
    gateways = {name for name, one in services.items() if one.get("command") == ["serve", "--roles", "gateway"]}
    known = services["balancer"]["environment"]["STENTOR_GATEWAYS"].split()
    assert {where.removesuffix(":8080") for where in known} == gateways
    assert len(gateways) == 2


@requirement("scale.deploy-kubernetes")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_has_the_form_that_kubernetes_publishes(version: str) -> None:
    import kubernetes_validate

    for one in described.objects():
        kubernetes_validate.validate(one, version, strict=True)


@requirement("scale.deploy-kubernetes")
def test_the_kustomization_lists_every_file_but_the_examples() -> None:
    [kustomization] = described.load(KUBERNETES / "kustomization.yaml")
    files = (
        {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"} - {path.name for path in EXAMPLES}
    )
    assert set(kustomization["resources"]) == files
    if kubectl := shutil.which("kubectl"):
        made = run(kubectl, "kustomize", str(KUBERNETES))
        assert made.count("registry.example.com/stentor:") == len(re.findall(r"image: ", made))


@requirement("scale.deploy-kubernetes")
def test_every_pod_keeps_to_the_restricted_standard() -> None:
    """Kubernetes' own: Pod Security Standards, level restricted; and read-only file systems besides."""
    for name, pod in described.pods():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 0, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        # Variables of the cluster for its services could otherwise be taken for settings.
        assert pod["enableServiceLinks"] is False, name
        for one in (*pod["containers"], *pod.get("initContainers", ())):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"requests", "limits"} == set(one["resources"]), name
        allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret", "name"}
        assert {kind for volume in pod["volumes"] for kind in volume} <= allowed, name


@requirement("scale.deploy-kubernetes")
def test_what_the_pods_name_exists() -> None:
    claims, secrets = described.of_kind("PersistentVolumeClaim"), described.of_kind("Secret")
    for name, pod in described.pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        for one in (*pod["containers"], *pod.get("initContainers", ())):
            assert {mount["name"] for mount in one["volumeMounts"]} <= volumes, name
            for source in one.get("envFrom", ()):
                kind, named = ("ConfigMap", "configMapRef") if "configMapRef" in source else ("Secret", "secretRef")
                assert source[named]["name"] in described.of_kind(kind), name
        assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v} <= set(
            claims
        )
        assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} <= set(secrets)
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"] for name, one in described.of_kind("Deployment").items()
    }
    for kind in ("Service", "PodDisruptionBudget"):
        for name, one in described.of_kind(kind).items():
            selector = one["spec"]["selector"]
            assert labels[name] == selector.get("matchLabels", selector), name
    gateway = described.of_kind("Deployment")["stentor-gateway"]["spec"]["template"]["spec"]
    assert gateway["terminationGracePeriodSeconds"] > 60


@requirement("scale.deploy-kubernetes")
def test_keys_of_a_secret_are_taken_from_it_as_the_service_wants_them(tmp_path: Path) -> None:
    """The script of the init container, with its folders elsewhere."""
    pod = dict(described.pods())["stentor-gateway"]
    [init] = pod["initContainers"]
    for name in ("keys", "data"):
        (tmp_path / name).mkdir()
    for name in described.of_kind("Secret")["stentor-keys"]["stringData"]:
        (tmp_path / "keys" / name).write_text("a key\n")
        (tmp_path / "keys" / name).chmod(0o440)
    script = init["args"][0].replace("/data/", f"{tmp_path}/data/").replace("/keys/*", f"{tmp_path}/keys/*")
    run(*init["command"], script)
    made = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data" / "keys").iterdir()}
    assert made == dict.fromkeys(("provenance.key", "provenance.pub", "providers.key", "receipts.key"), 0o600)


def test_every_proxy_closes_its_connections_before_the_service_does() -> None:
    for path in (DEPLOY / "caddy").iterdir():
        seconds = re.findall(r"^\t\t\tkeepalive (\d+)s$", path.read_text(), re.MULTILINE)
        assert len(seconds) == path.read_text().count("reverse_proxy"), path.name
        assert max(map(int, seconds)) < settings.Settings().connections.keep_alive


@pytest.mark.slow
@requirement("scale.deploy-systemd")
def test_the_unit_is_valid_and_well_fenced(tmp_path: Path) -> None:
    analyze = need("systemd-analyze")
    program = Path(sys.executable).parent / "stentor"
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("/opt/stentor/bin/stentor", str(program)))
    done = subprocess.run([analyze, "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True)
    assert UNIT.name not in done.stderr, done.stderr
    judged = run(analyze, "security", "--offline=true", str(tmp_path / UNIT.name))
    [level] = re.findall(r"exposure level for stentor.service: ([\d.]+)", judged)
    assert float(level) < 2.0


@requirement("scale.deploy-no-secrets")
def test_the_examples_hold_no_values_of_secrets() -> None:
    for name, secret in described.of_kind("Secret").items():
        assert set(secret["stringData"].values()) == {""}, name
    secrets = {meta.env for meta in settings.setting_infos().values() if meta.secret}
    for path in (DEPLOY / "compose.env.example", UNIT.parent / "stentor.env.example"):
        for name, value in re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE):
            if name in secrets or "PASSWORD" in name or "KEY" in name:
                assert value == "", name
