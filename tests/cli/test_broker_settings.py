"""`quire brokers config`: the requests of Pulsar's tool for settings that change while brokers run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.cli.output import NOT_FOUND
from tests.cli.recording import Recording, recording
from tests.cli.running import Ran, quire

CONFIGURATION = "/admin/v2/brokers/configuration"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    with recording() as made:
        monkeypatch.setenv("QUIRE_ADMIN_URL", made.url)
        made.answers[f"GET {CONFIGURATION}"] = (
            "retention_bytes",
            "retention_ms",
        )  # a list is for several requests
        made.answers[f"GET {CONFIGURATION}/values"] = {"retention_ms": "7d"}
        made.answers[f"GET {CONFIGURATION}/runtime"] = {
            "cluster": "quire",
            "retention_bytes": "-1",
            "retention_ms": "604800000",
        }
        yield made


def test_settings_are_listed_with_the_value_in_use_and_the_one_that_is_set(broker: Recording) -> None:
    lines = [line.split() for line in quire("brokers", "config", "list").out.splitlines()]
    assert lines[1:] == [["retention_bytes", "-1"], ["retention_ms", "604800000", "7d"]]
    assert quire("brokers", "config", "list", "--json").json[1] == {
        "setting": "retention_ms",
        "value": "604800000",
        "set": "7d",
    }
    assert quire("brokers", "config", "list", "--runtime").out.split()[:2] == ["cluster", "quire"]


def test_one_setting_is_shown_with_a_note_if_it_is_not_set(broker: Recording) -> None:
    assert quire("brokers", "config", "get", "retention_ms") == Ran(0, "604800000\n", "")
    own = quire("brokers", "config", "get", "retention_bytes")
    assert (own.out, own.err) == (
        "-1\n",
        "retention_bytes is not set for all brokers; this broker's own value\n",
    )
    unknown = quire("brokers", "config", "get", "retention_m")
    assert unknown.code == NOT_FOUND and "did you mean retention_ms?" in unknown.err


def test_a_setting_is_changed_and_reset(broker: Recording) -> None:
    assert (
        quire("brokers", "config", "set", "retention_ms", "7d").out == "retention_ms is 7d for all brokers\n"
    )
    assert quire("brokers", "config", "set", "name", "a/b c").code == 0
    assert quire("brokers", "config", "remove", "retention_ms").code == 0
    assert broker.changes() == [
        ("POST", f"{CONFIGURATION}/retention_ms/7d", None),
        ("POST", f"{CONFIGURATION}/name/a%2Fb%20c", None),
        ("DELETE", f"{CONFIGURATION}/retention_ms", None),
    ]
