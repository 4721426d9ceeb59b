"""The settings as a whole: few, each said once, and a sample file that is what the code does."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.cli.config import PROCESSES, command
from quire.ledger.settings import LedgerSettings
from quire.process import standalone
from quire.process.settings import Given
from quire.runtime import settings

SAMPLE = Path(__file__).parents[1] / "deploy" / "quire.toml"
SETTINGS_MAX = 70


def uncommented(text: str) -> str:
    """The sample with every setting switched on."""
    return "\n".join(line.removeprefix("# ") for line in text.splitlines() if " = " in line)


def test_there_are_few_settings_and_each_has_one_meaning() -> None:
    names = [spec.name for kind in standalone.KINDS for spec in fields(kind)]
    assert len(names) < SETTINGS_MAX
    assert len(set(names)) == len(names), "two services share a name"


def test_every_setting_has_a_sentence_of_prose() -> None:
    for kind in standalone.KINDS:
        for spec in fields(kind):
            prose = spec.metadata["prose"]
            assert prose.endswith((".", "…")) and len(prose) > 15, f"{kind.__name__}.{spec.name}: {prose!r}"


def test_the_sample_file_is_what_the_command_prints() -> None:
    """`quire config sample > deploy/quire.toml` renews it."""
    assert SAMPLE.read_text() == CliRunner().invoke(command, ["sample"]).output


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_takes_the_sample_that_is_made_for_it(tmp_path: Path, process: str) -> None:
    file = tmp_path / f"{process}.toml"
    file.write_text(uncommented(CliRunner().invoke(command, ["sample", process]).output))
    kinds, defaults = PROCESSES[process]
    settings.refuse_unknown_keys(file, kinds)
    metadata = {"metadata": "zk://127.0.0.1:2181/quire"}
    for kind in kinds:
        loaded = settings.load(kind, metadata, environment={}, file=file)
        assert loaded.values == settings.load(kind, metadata, environment={}, defaults=defaults).values


def test_the_sample_as_it_is_sets_nothing() -> None:
    assert tomllib.loads(SAMPLE.read_text()) == {}


def test_the_sample_switched_on_gives_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(uncommented(SAMPLE.read_text()))
    settings.refuse_unknown_keys(file, standalone.KINDS)
    for kind in standalone.KINDS:
        loaded = settings.load(kind, environment={}, file=file)
        plain = settings.load(kind, environment={}, defaults=standalone.DEFAULTS)
        assert loaded.values == plain.values
        assert set(loaded.sources.values()) == {"file"}, f"the sample lacks a setting of {kind.__name__}"


@pytest.mark.parametrize("make", [str, uncommented])
def test_a_standalone_process_starts_with_the_sample(tmp_path: Path, make: Callable[[str], str]) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(make(SAMPLE.read_text()))
    loaded = standalone.load(Given({"data": str(tmp_path / "data")}, file))
    assert loaded[standalone.StandaloneSettings].metadata == f"sqlite://{tmp_path}/data/metadata.db"
    assert loaded[LedgerSettings].write_quorum == 1
