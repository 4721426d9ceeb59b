"""Settings come from flags, environment and file in that order, and say where each came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.runtime import settings
from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import BYTES, MILLISECONDS, setting


@dataclass(frozen=True)
class Sample:
    room_bytes: int = setting(64 << 20, "How much room.", unit=BYTES)
    wait_ms: int = setting(250, "How long to wait.", unit=MILLISECONDS)
    listen: str = setting("127.0.0.1:0", "Where to listen.")
    unsafe_no_sync: bool = setting(False, "Answer before the disk has it.")

    def validate(self) -> None:
        if self.room_bytes < 1024:
            raise ConfigurationError("room_bytes must be at least 1KiB")


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('room_bytes = "1MiB"\nwait_ms = "1s"\nlisten = "0.0.0.0:1"\n')
    loaded = settings.load(
        Sample,
        {"room_bytes": "3MiB", "wait_ms": None},
        environment={"QUIRE_WAIT_MS": "2s", "QUIRE_ROOM_BYTES": "2MiB"},
        file=file,
    )
    assert loaded.values == Sample(3 << 20, 2000, "0.0.0.0:1", False)
    assert loaded.sources == {
        "room_bytes": "flag",
        "wait_ms": "environment",
        "listen": "file",
        "unsafe_no_sync": "default",
    }


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("room_bytes", "12 parsecs", "a size such as 64MiB"),
        ("wait_ms", "soon", "a time such as 250ms"),
        ("unsafe_no_sync", "perhaps", "true or false"),
        ("room_bytes", "12", "at least 1KiB"),
        ("room_bytes", True, "not a number"),
        ("listen", {"host": "x"}, "not a text"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        settings.load(Sample, {name: value}, environment={})
    assert name in str(caught.value)


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text("rooom_bytes = 5\n")
    with pytest.raises(ConfigurationError, match="rooom_bytes"):
        settings.refuse_unknown_keys(file, (Sample,))


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_reads_back_as_it_was_written(count: int) -> None:
    assert settings.parse_size(settings.format_size(count)) == count


@given(st.integers(min_value=0, max_value=1 << 40))
def test_a_duration_reads_back_as_it_was_written(ms: int) -> None:
    assert settings.parse_duration_ms(settings.format_duration_ms(ms)) == ms


def test_the_sample_file_reads_back_as_the_defaults(tmp_path: Path) -> None:
    text = settings.sample_toml((Sample,))
    file = tmp_path / "quire.toml"
    file.write_text("\n".join(line[2:] for line in text.splitlines() if " = " in line))
    assert settings.load(Sample, environment={}, file=file).values == Sample()
