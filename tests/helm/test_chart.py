"""The Helm chart: what it renders starts what the command line takes, keeps data apart, and is what Kubernetes knows.

`helm` is looked for on the path and in build/bin (`make helm`); without one these tests are skipped. No Kubernetes is
needed: documents are decoded into Kubernetes' own types (strict/main.go, by the modules of its API), and kubeconform
has its say, where it is and reaches its schemas.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from quire.cli.main import cli

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
STRICT = Path(__file__).parent / "strict"
BIN = ROOT / "build" / "bin"
PATH = f"{BIN}:{os.environ['PATH']}"
KUBERNETES = "1.30.0"
RENDERINGS = {
    "as it is": (),
    "with all": (
        *("--set", "metadata=zk://zk-0:2181/quire", "--set", "archive.url=s3://bucket/quire"),
        *("--set", "archive.secret=s3", "--set", "security.secret=quire-security"),
        *("--set", "security.probeScheme=HTTPS", "--set", "security.probePort=8443"),
        *(
            "--set",
            "broker.settings.segment_bytes_max=1GiB",
            "--set",
            "bookie.settings.memtable_bytes=128MiB",
        ),
        *("--set", "bookie.journal.className=fast", "--set", "bookie.nodeSelector.disks=local"),
        *("--set", "imagePullSecrets[0].name=registry", "--set", "broker.autoscaling.enabled=false"),
        *("--set", "broker.tolerations[0].key=quire", "--set", "broker.tolerations[0].operator=Exists"),
        *("--set", "gateway.service.type=LoadBalancer", "--set", "gateway.service.annotations.a=b"),
    ),
}


def helm(*words: str) -> str:
    program = shutil.which("helm", path=PATH)
    if program is None:
        pytest.skip("helm is not installed; `make helm` builds it")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=RENDERINGS)
def text(request: pytest.FixtureRequest) -> str:
    return helm(
        "template", "try", str(CHART), "--namespace", "apart", "--kube-version", KUBERNETES,
        *RENDERINGS[request.param],
    )  # fmt: skip


@pytest.fixture(scope="module")
def documents(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


Documents = dict[tuple[str, str], dict[str, Any]]


def pods(documents: Documents) -> dict[str, dict[str, Any]]:
    """The pods' specifications by what they are: bookie, broker, gateway, zookeeper."""
    kinds = ("StatefulSet", "Deployment")
    return {
        name.removeprefix("try-"): one["spec"]["template"]["spec"]
        for (kind, name), one in documents.items()
        if kind in kinds
    }


def test_helm_has_nothing_to_say_of_the_chart() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--kube-version", KUBERNETES)


def test_kubernetes_knows_every_field(text: str, documents: Documents) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no go on this machine")
    program = ROOT / "build" / "strict"
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(program), "."],
        cwd=STRICT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode and "main.go:" not in done.stderr:
        pytest.skip(f"the modules of Kubernetes' API cannot be fetched: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    read = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert int(read.stdout) == len(documents)
    broken = subprocess.run(
        [program],
        input=text.replace("minReadySeconds", "minReadySecond"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert broken.returncode == 1, "it finds nothing"


def test_kubeconform_says_the_same(text: str) -> None:
    program = shutil.which("kubeconform", path=PATH)
    if program is None:
        pytest.skip("kubeconform is not installed; `make helm` builds it")
    words = [program, "-strict", "-kubernetes-version", KUBERNETES, "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, check=False)
    if "failed downloading schema" in done.stdout + done.stderr or "could not find schema" in done.stdout:
        pytest.skip("kubeconform cannot reach its schemas")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_process_is_told_what_the_command_line_takes(documents: Documents) -> None:
    for name, pod in pods(documents).items():
        (container,) = pod["containers"]
        subcommand, *words = container["args"]
        command = cli.get_command(click.Context(cli), subcommand)
        assert command is not None and subcommand == name
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
        variables = {one["name"] for one in container.get("env", ()) if one["name"].startswith("QUIRE_")}
        assert variables <= {f"QUIRE_{option[2:].replace('-', '_').upper()}" for option in known}


def test_nobody_is_privileged_and_only_volumes_are_written(documents: Documents) -> None:
    for pod in pods(documents).values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        (container,) = pod["containers"]
        given = container["securityContext"]
        assert given["readOnlyRootFilesystem"] and not given["allowPrivilegeEscalation"]
        assert given["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= container["resources"].keys()
        volumes = {one["name"] for one in pod["volumes"]}
        claimed = {one["name"] for one in container["volumeMounts"]} - volumes
        assert claimed == {"bookie": {"journal", "entries"}, "zookeeper": {"data"}}.get(
            container["name"], set()
        )


def test_every_process_is_probed_and_gets_time_to_start_and_to_stop(documents: Documents) -> None:
    for name, pod in pods(documents).items():
        (container,) = pod["containers"]
        probes = [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
        if name == "zookeeper":
            continue
        assert [one["httpGet"]["path"] for one in probes] == ["/health/live", "/health/live", "/health/ready"]
        assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] >= 1800
        assert pod["terminationGracePeriodSeconds"] >= 60


def test_a_bookie_has_two_volumes_a_name_of_its_own_and_is_drained_when_it_is_scaled_away(
    documents: Documents,
) -> None:
    spec = documents["StatefulSet", "try-bookie"]["spec"]
    assert [one["metadata"]["name"] for one in spec["volumeClaimTemplates"]] == ["journal", "entries"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (drain,) = [word for word in container["args"] if word.startswith("--drain-on-stop-ms=")]
    minutes = int(drain.partition("=")[2].removesuffix("min"))
    assert pod["terminationGracePeriodSeconds"] == 60 * minutes + 60
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["stop-bookie"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["STATEFUL_SET"] == "apart/try-bookie"
    assert variables["QUIRE_ADVERTISE"] == "$(POD_NAME).try-bookie.apart.svc:3181"
    service = documents["Service", "try-bookie"]["spec"]
    assert service["clusterIP"] == "None" and service["selector"] == spec["selector"]["matchLabels"]
    (rule,) = documents["Role", "try-bookie"]["rules"]
    assert rule["resources"] == ["statefulsets"] and rule["resourceNames"] == ["try-bookie"]


def test_one_of_each_kind_may_be_away_and_selectors_meet_pods(documents: Documents) -> None:
    for name in ("bookie", "broker", "gateway"):
        budget = documents["PodDisruptionBudget", f"try-{name}"]["spec"]
        assert budget["maxUnavailable"] == 1
        kind = "StatefulSet" if name == "bookie" else "Deployment"
        owner = documents[kind, f"try-{name}"]["spec"]
        labels = owner["template"]["metadata"]["labels"]
        assert labels == budget["selector"]["matchLabels"] == owner["selector"]["matchLabels"]
        assert documents["Service", f"try-{name}"]["spec"]["selector"] == labels


def test_brokers_are_scaled_by_load_or_as_many_as_was_said(documents: Documents) -> None:
    scaler = documents.get(("HorizontalPodAutoscaler", "try-broker"))
    deployment = documents["Deployment", "try-broker"]["spec"]
    if scaler is None:
        assert deployment["replicas"] == 2
        return
    assert "replicas" not in deployment, "or each upgrade would undo what the autoscaler did"
    assert scaler["spec"]["scaleTargetRef"]["name"] == "try-broker"
    assert scaler["spec"]["minReplicas"] == 2 <= scaler["spec"]["maxReplicas"]
    assert "requests" in pods(documents)["broker"]["containers"][0]["resources"], "what the percentage is of"


def test_zookeeper_is_ours_or_another_one() -> None:
    def names(*words: str) -> str:
        return helm("template", "try", str(CHART), "--kube-version", KUBERNETES, *words)

    assert "zk://try-zookeeper:2181/quire" in names()
    given = names("--set", "metadata=zk://zk-0:2181/quire")
    assert "try-zookeeper" not in given and '"zk://zk-0:2181/quire"' in given
