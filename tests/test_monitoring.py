"""The alerts and the dashboard are those of the table of metrics, and a real Prometheus evaluates every query of them.

What needs Prometheus' programs (Debian: `prometheus`) is skipped where they are not installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import click
import pytest
import yaml

from deploy.monitoring import generate
from deploy.monitoring.alerts import ALERTS, Alert
from deploy.monitoring.generate import HERE, dashboard, rules
from quire.cli.main import cli
from quire.runtime.metric_table import BY_NAME
from quire.runtime.metrics import Kind
from quire.serving.subscription.dispatch.blocked import REASONS
from quire.testing.zookeeper_server import free_port
from tests.cli.running import quire, standalone

OF_PROMETHEUS: Final = {"up": ()}
LABELS_OF_PROMETHEUS: Final = {"job", "instance"}
OF_THE_MACHINE: Final = {
    "QuireDiskNearlyFull",
    "QuireDiskFillsUp",
    "QuireLoopStalls",
    "QuireJournalSlow",
    "QuirePublishSlow",
}
"""Alerts that a slow or full machine may rightly raise."""
NOT_THERE: Final = re.compile(
    r"quire_(gateway|repair|security|wal)_\w+"
    r"|quire_bookie_(bytes_in_flight\w*|damage\w+|retired|scrub_\w+)"
    r"|quire_serving_(bundles_(moved|split)_total|bundles_owned|cannot_write|session\w+|untraced_total)"
    r"|quire_namespace_subscriptions_blocked"  # by the reasons that alerts ask for
)
"""What a standalone that is well, without security, has no samples of."""
WAIT_S: Final = 60

EVERY: Final = [alert for group in ALERTS.values() for alert in group]
PANELS: Final[list[dict[str, Any]]] = [
    panel
    for one in json.loads((HERE / "quire.json").read_text())["panels"]
    for panel in (one, *one.get("panels", ()))
    if panel["type"] != "row"
]
CHARTED: Final = [target["expr"] for panel in PANELS for target in panel["targets"]]

STRING: Final = r'"[^"]*"'
SELECTOR: Final = re.compile(r"\b((?:quire|process)_\w+|up)\b({[^}]*})?")
MATCHER: Final = re.compile(rf"(\w+)\s*(?:=~|!~|!=|=)\s*({STRING})")
GROUPED: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


class Selected(NamedTuple):
    """`name{…}` in an expression."""

    text: str
    name: str
    matched: dict[str, str]


def selectors(expr: str) -> list[Selected]:
    found = []
    for name, braces in SELECTOR.findall(expr):
        matched = {label: value.strip('"') for label, value in MATCHER.findall(braces)}
        found.append(Selected(name + braces, name, matched))
    return found


def labels_of(name: str) -> set[str]:
    """What samples of `name` are labelled with; an error when the table does not have it."""
    if name in OF_PROMETHEUS:
        return LABELS_OF_PROMETHEUS
    part = re.fullmatch(r"(.*)_(bucket|sum|count)", name)
    if part and part[1] in BY_NAME and BY_NAME[part[1]].kind is Kind.HISTOGRAM:
        more = {"le"} if part[2] == "bucket" else set()
        return {*BY_NAME[part[1]].labels, *more, *LABELS_OF_PROMETHEUS}
    assert BY_NAME[name].kind is not Kind.HISTOGRAM, f"{name}: a histogram has only parts"
    return {*BY_NAME[name].labels, *LABELS_OF_PROMETHEUS}


def test_what_is_committed_is_what_is_generated() -> None:
    """`make monitoring` writes both anew."""
    assert (HERE / "alerts.yml").read_text() == rules()
    assert (HERE / "quire.json").read_text() == dashboard()


@pytest.mark.parametrize("expr", [*CHARTED, *(alert.expr for alert in EVERY)])
def test_every_name_and_label_is_one_of_the_table(expr: str) -> None:
    found = selectors(expr)
    assert found
    for one in found:
        assert set(one.matched) <= labels_of(one.name), one
    grouped = {label.strip() for inside in GROUPED.findall(expr) for label in inside.split(",")}
    assert grouped <= set.union(*(labels_of(one.name) for one in found)), expr
    reasons = [word for one in found for word in one.matched.get("reason", "").split("|") if word]
    assert set(reasons) <= set(REASONS)


def test_a_name_or_label_that_is_not_there_is_found() -> None:
    with pytest.raises(KeyError, match="quire_nothing"):
        test_every_name_and_label_is_one_of_the_table("rate(quire_nothing_total[5m])")
    with pytest.raises(AssertionError):
        test_every_name_and_label_is_one_of_the_table("sum by (namespace) (quire_bookie_ledgers)")
    with pytest.raises(AssertionError):
        test_every_name_and_label_is_one_of_the_table('quire_bookie_ledgers{topic="a"}')


def test_every_metric_is_charted_and_every_panel_explained() -> None:
    charted = {one.name.removesuffix("_bucket") for expr in CHARTED for one in selectors(expr)}
    assert charted == set(BY_NAME) | set(OF_PROMETHEUS)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("alert", EVERY, ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do_with_what_it_knows(alert: Alert) -> None:
    """Labels in its words are there after `by`, and commands are ones that `quire` has."""
    assert alert.severity in {"critical", "warning"} and alert.summary and alert.todo.endswith(".")
    named = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    outer = re.match(
        r"(?:sum|max|count)(?: by \(([^)]*)\))? ?\(|histogram_quantile\(0.99, sum by \(([^)]*)\)",
        alert.watched,
    )
    if outer:
        assert named <= {label.strip() for label in (outer[1] or outer[2] or "").split(",")}
    for group, command in re.findall(r"\bquire ([a-z]+) ([a-z]+)", alert.todo):
        assert command in cli.get_command(None, group).commands, f"quire {group} {command}"  # type: ignore


RUNBOOK: Final = (HERE.parents[1] / "docs" / "runbook.md").read_text()
ENTRIES: Final = {
    entry.partition("\n")[0]: entry for entry in re.split(r"^##+ ", RUNBOOK, flags=re.MULTILINE)[1:]
}
PARTS: Final = ["Means", "Users notice", "Look", "Do", "Over when"]


def test_the_runbook_has_an_entry_for_each_alert_in_their_order() -> None:
    named = [name for name in ENTRIES if name.startswith("Quire")]
    assert named == [alert.name for alert in EVERY]
    urls = [rule["annotations"]["runbook_url"] for rule in committed_rules()]
    assert urls == [f"docs/runbook.md#{name.lower()}" for name in named]


def test_the_address_of_a_runbook_may_have_other_signs_of_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "RUNBOOK", "https://wiki/our%20space/quire#%s")
    assert "runbook_url: https://wiki/our%20space/quire#quiredown\n" in rules()


def committed_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((HERE / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("alert", EVERY, ids=lambda alert: alert.name)
def test_an_entry_of_the_runbook_has_all_parts_and_names_what_is_there(alert: Alert) -> None:
    entry = ENTRIES[alert.name]
    assert re.findall(r"^- \*\*(.+?)\*\*:", entry, re.MULTILINE) == PARTS
    for name in re.findall(r"`(quire_\w+)`", entry):
        labels_of(name)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`(quire\s[^`]+)`", RUNBOOK))))
def test_a_command_of_the_runbook_can_be_typed(command: str) -> None:
    """Its words are commands, its flags are ones that it has, and it has as many arguments as it needs."""
    _, *words = command.replace("LEDGER", "17").split()
    group = cli.get_command(None, words[0])  # type: ignore[arg-type]
    assert group is not None, f"quire has no {words[0]}"
    made, rest = group, words[1:]
    while isinstance(made, click.Group) and rest and rest[0] in made.commands:
        made, rest = made.commands[rest[0]], rest[1:]
    assert not isinstance(made, click.Group), f"{command} does nothing: quire {words[0]} has no such command"
    with made.make_context(command, list(rest), resilient_parsing=False):
        pass


# -- with Prometheus' own programs


def needs(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: apt install prometheus)")
    return path


@pytest.mark.parametrize(("what", "file"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_takes_them(what: str, file: str) -> None:
    done = subprocess.run(
        [needs("promtool"), "check", what, str(HERE / file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus(NamedTuple):
    url: str

    def ask(self, expr: str) -> list[Any]:
        """The samples of `expr` now."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': expr})}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]  # type: ignore[no-any-return]

    def wait(self, expr: str) -> None:
        """Until `expr` has a sample."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                if self.ask(expr):
                    return
            except (URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"{expr} has no value after {WAIT_S} s")


@contextmanager
def prometheus(directory: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """One that scrapes `targets`, jobs to addresses, every second, with all else as the committed file has it."""
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(HERE / "alerts.yml")]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = (
            [{"targets": [targets[job["job_name"]]]}] if job["job_name"] in targets else []
        )
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                needs("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'series'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(30)


def asked(expr: str) -> str:
    """As Grafana asks it."""
    return expr.replace("$__rate_interval", "1m").replace("$namespace", ".*")


def test_a_real_prometheus_evaluates_every_query(tmp_path: Path) -> None:
    """Whatever has samples has values in each chart and alert; of a cluster that is well, no alert fires."""
    needs("prometheus")
    (tmp_path / "lines").write_text("hello\n")
    nobody = f"127.0.0.1:{free_port()}"
    with standalone(tmp_path) as server:
        lines = str(tmp_path / "lines")
        assert quire("produce", "hello", lines, "--service-url", server.service_url).code == 0
        made = quire(
            "subscriptions", "create", "hello", "audit", "--from", "earliest", "--admin-url", server.http_url
        )
        assert made.code == 0, made.err
        targets = {"quire-broker": server.http_url.removeprefix("http://"), "quire-gateway": nobody}
        with prometheus(tmp_path, targets) as watching:
            watching.wait("rate(quire_subscription_messages_out_total[1m])")
            watching.wait('up{job="quire-gateway"}')
            silent: set[str] = set()
            for expr in [*map(asked, CHARTED), *(alert.watched for alert in EVERY)]:
                try:
                    without = {one.name for one in selectors(expr) if not watching.ask(one.text)}
                    assert watching.ask(expr) or without, f"no value: {expr}"
                except HTTPError as error:
                    raise AssertionError(f"{expr}: {error.read().decode()}") from None
                silent |= without
            assert [name for name in sorted(silent) if not NOT_THERE.fullmatch(name)] == []
            firing = {alert.name: found for alert in EVERY if (found := watching.ask(alert.expr))}
            assert [one["metric"]["job"] for one in firing.pop("QuireDown")] == ["quire-gateway"]
            assert set(firing) <= OF_THE_MACHINE, firing
