"""The schema of the chart's values: it accepts values.yaml and the pages' commands, and refuses typos.

`QUIRE_REWRITE=1` renews the names of settings in the schema.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from quire.cli.config import PROCESSES
from tests.helm.test_chart import helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
SCHEMA_FILE = CHART / "values.schema.json"
SCHEMA: dict[str, Any] = json.loads(SCHEMA_FILE.read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
OF_THE_CHART = {
    "bookie": {"new_cluster", "drain_on_stop_ms", "journal", "entry_log"},
    "broker": {"archive"},
    "gateway": set[str](),
}
"""Settings that the chart sets itself, besides those in `OF_ALL`: a second value would be ignored."""
OF_ALL = {"metadata", "security", "listen", "http", "advertise"}


def pages_words() -> list[str]:
    """Return the words after each `--set` of deploy/README.md, and its other `key=value`s of the chart."""
    text = (ROOT / "deploy" / "README.md").read_text()
    chapter = text.split("## Kubernetes")[1].split("\n## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)
    words = shlex.split(script.replace("\\\n", " "))
    found = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    inline = re.findall(r"`(?:helm upgrade --set )?([\w.]+=[\w.]+)`", chapter)
    assert len(found) >= 3 and len(inline) >= 3
    return [*found, *inline]


def with_set(*words: str) -> dict[str, Any]:
    """Return the values after `--set WORD` for each word, as Helm parses it."""
    values = copy.deepcopy(VALUES)
    for pair in (pair for word in words for pair in re.split(r"(?<!\\),", word)):
        name, _, text = pair.partition("=")
        *path, last = name.split(".")
        at = values
        for step in path:
            at = at.setdefault(step, {})
        at[last] = yaml.safe_load(text) if re.fullmatch(r"\d+|true|false", text) else text.replace("\\,", ",")
    return values


def check(values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(values, SCHEMA, jsonschema.Draft7Validator)


def test_the_values_and_the_pages_commands_are_valid() -> None:
    check(VALUES)
    check(VALUES | {"global": {"of": "a parent chart"}, "enabled": True})
    for word in pages_words():
        check(with_set(word))
    ensemble = with_set(*pages_words())["metadata"]
    assert ensemble == "zk://zk-0.zk:2181,zk-1.zk:2181,zk-2.zk:2181/quire"


@pytest.mark.parametrize(
    "word",
    [
        "metadata=zk://zk-0.zk:2181,zk-1.zk:2181,zk-2.zk:2181/quire",  # commas without \
        "metdata=zk://zk-0:2181/quire",
        "metadata=zk-0:2181",
        "bookie.replica=5",
        "bookie.replicas=0",
        "broker.autoscaling.replicaMax=4",
        "broker.settings.segment_byte_max=1GiB",
        "broker.settings.listen=0.0.0.0:6660",
        "bookie.journal.size=20GiB",
        "archive.url=bucket/prefix",
        "gateway.service.type=Loadbalancer",
        "image.tag=1",
    ],
)
def test_a_typo_is_refused(word: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(with_set(word))


def test_every_value_of_the_chart_has_a_type() -> None:
    """A value that the schema lacks could not be set, and one that values.yaml lacks would have no explanation."""

    def names(schema: dict[str, Any], values: Any, where: str) -> None:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        if isinstance(values, dict) and "properties" in schema:
            known = set(schema["properties"])
            if where == "values":
                known -= {"global", "enabled"}  # of a parent chart
            assert set(values) == known or where.endswith("resources"), where
            for name, value in values.items():
                names(schema["properties"][name], value, f"{where}.{name}")

    names(SCHEMA, VALUES, "values")


@pytest.mark.parametrize("process", OF_THE_CHART)
def test_the_schema_has_the_settings_of_each_process(process: str) -> None:
    kinds, _ = PROCESSES[process]
    known = {spec.name for kind in kinds for spec in fields(kind)} - OF_THE_CHART[process] - OF_ALL
    names = SCHEMA["definitions"][f"{process}Settings"]["propertyNames"]
    if os.environ.get("QUIRE_REWRITE"):
        names["enum"] = sorted(known)
        SCHEMA_FILE.write_text(json.dumps(SCHEMA, indent=2) + "\n")
    assert names["enum"] == sorted(known), "QUIRE_REWRITE=1 .venv/bin/pytest tests/helm/test_values.py"


def test_helm_renders_the_pages_commands_and_refuses_a_typo() -> None:
    words = [word for value in pages_words() for word in ("--set", value)]
    rendered = helm("template", "try", str(CHART), *words)
    assert '"zk://zk-0.zk:2181,zk-1.zk:2181,zk-2.zk:2181/quire"' in rendered
    with pytest.raises(AssertionError, match="metdata"):
        helm("template", "try", str(CHART), "--set", "metdata=zk://zk-0:2181/quire")


def test_helm_renders_large_numbers_as_digits(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("broker: {settings: {segment_bytes_max: 1073741824, log_json: true, cluster: mine}}\n")
    rendered = helm("template", "try", str(CHART), "--values", str(file))
    for name, value in (("SEGMENT_BYTES_MAX", "1073741824"), ("LOG_JSON", "true"), ("CLUSTER", "mine")):
        assert f'- name: QUIRE_{name}\n              value: "{value}"' in rendered
