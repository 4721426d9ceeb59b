"""The release workflow publishes sdist, wheel, chart, and images for two architectures, only for the code's version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import quire

ROOT = Path(__file__).parents[1]
FILE = ROOT / ".github" / "workflows" / "release.yml"
WORKFLOW: dict[Any, Any] = yaml.safe_load(FILE.read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def scripts(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def step_of(job: str, action: str) -> dict[str, Any]:
    (found,) = [step for step in JOBS[job]["steps"] if step.get("uses", "").startswith(f"{action}@")]
    return found["with"]


def test_a_tag_starts_it_and_every_other_job_needs_the_package() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}, "YAML reads `on` as true"
    assert [name for name, job in JOBS.items() if job.get("needs") != "package"] == ["package"]


@pytest.mark.parametrize(("tag", "is_right"), [(f"v{quire.__version__}", True), ("v99.0.0", False)])
def test_a_tag_of_another_version_is_refused(tag: str, is_right: bool) -> None:
    (check,) = [script for script in scripts("package") if "quire.__version__" in script]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-c", check], cwd=ROOT, env=environment, check=False)
    assert (done.returncode == 0) == is_right


def test_sdist_wheel_and_chart_are_built_and_attached_to_the_release() -> None:
    text = "\n".join(scripts("package"))
    built, package, release = (text.index(word) for word in ("python -m build", "helm package", "gh release"))
    assert built < package < release and "dist/*" in text[release:]
    assert JOBS["package"]["permissions"] == {"contents": "write"}
    assert (ROOT / "deploy" / "helm" / "Chart.yaml").is_file()
    assert step_of("package", "actions/upload-artifact")["path"] == "dist"


def test_images_for_two_architectures_are_pushed() -> None:
    stages = set(re.findall(r"^FROM .* AS (\w+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE))
    targets = {row["target"] for row in JOBS["image"]["strategy"]["matrix"]["include"]}
    assert targets == {"quire", "java"} <= stages
    push = step_of("image", "docker/build-push-action")
    assert push["platforms"].split(",") == ["linux/amd64", "linux/arm64"] and push["push"] is True
    assert (ROOT / push["file"]).is_file() and push["target"] == "${{ matrix.target }}"
    assert JOBS["image"]["permissions"] == {"contents": "read", "packages": "write"}


def test_the_package_is_published_only_where_the_index_trusts_the_repository() -> None:
    assert JOBS["index"]["if"].startswith("vars.")
    assert JOBS["index"]["permissions"] == {"id-token": "write"}
