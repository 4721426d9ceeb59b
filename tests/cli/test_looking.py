"""Commands that only look, and starts that are refused, create nothing at a mistyped URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.output import TRY_AGAIN, WRONG_USE
from tests.cli.running import quire

METADATA, STORE = "sqlite://{}/x/typo.db", "file://{}/x/typo"
COMMANDS = {
    "doctor --machine --json --metadata METADATA --archive STORE": TRY_AGAIN,
    "wal list --metadata METADATA --wal STORE": WRONG_USE,
    "wal scrub --delete --metadata METADATA --wal STORE": WRONG_USE,
    "stores list --metadata METADATA": WRONG_USE,
    "stores adopt archive STORE --metadata METADATA": WRONG_USE,
    "rescue metadata --dry-run --metadata METADATA --wal STORE": WRONG_USE,
    "rescue accept-older --metadata METADATA --archive STORE": WRONG_USE,
    "broker --metadata METADATA --archive STORE --listen 127.0.0.1:0 --http 127.0.0.1:0": WRONG_USE,
    "gateway --metadata METADATA --listen 127.0.0.1:0 --http 127.0.0.1:0": WRONG_USE,
    "bookie --metadata METADATA --journal JOURNAL --entry-log ENTRIES --listen 127.0.0.1:0": WRONG_USE,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_created(command: str, tmp_path: Path) -> None:
    places = {
        "METADATA": METADATA.format(tmp_path),
        "STORE": STORE.format(tmp_path),
        "JOURNAL": f"{tmp_path}/journal",
        "ENTRIES": f"{tmp_path}/entries",
    }
    ran = quire(*(places.get(word, word) for word in command.split()))
    assert ran.code == COMMANDS[command], ran
    assert not list(tmp_path.rglob("*"))
    if ran.code == WRONG_USE:
        assert ran.err.count("\n") == 1 and ("does not exist" in ran.err or "is empty" in ran.err), ran


def test_a_doctor_names_what_does_not_exist(tmp_path: Path) -> None:
    words = ("--metadata", METADATA.format(tmp_path), "--archive", STORE.format(tmp_path))
    ran = quire("doctor", "--machine", *words)
    assert ran.code == TRY_AGAIN
    assert (
        f"{tmp_path}/x/typo.db does not exist" in ran.out and f"{tmp_path}/x/typo does not exist" in ran.out
    )
