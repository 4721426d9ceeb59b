"""The log: what repeats is counted and not written, what is slow is named, and JSON has it all as fields."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

import pytest

from quire.runtime import log, slow


class Err:
    """What was written to standard error so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._found = ""

    def getvalue(self) -> str:
        self._found += self._capsys.readouterr().err
        return self._found


@pytest.fixture
def err(capsys: pytest.CaptureFixture[str]) -> Iterator[Err]:
    """Standard error; the log is put back afterwards."""
    root = logging.getLogger()
    handlers, level, bound_s = root.handlers[:], root.level, slow.BOUND.s
    yield Err(capsys)
    root.handlers[:] = handlers
    root.setLevel(level)
    slow.BOUND.s = bound_s


def until(err: Err, words: str) -> str:
    """The line that has these words, once it is there."""
    deadline = time.monotonic() + 20.0
    while True:
        found = [line for line in err.getvalue().splitlines() if words in line]
        if found:
            return found[0]
        assert time.monotonic() < deadline, err.getvalue()
        time.sleep(0.01)


def test_lines_of_one_kind_are_counted_after_the_first_ones(
    err: Err, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LIKE_IT_S", 0.3)
    log.configure()
    other = logging.getLogger("quire.other")
    for number in range(log.LIKE_IT_MAX + 7):
        logging.getLogger("quire.some").warning("topic %d is slow", number)
    other.warning("topic %d is slow", 1)
    lines = err.getvalue().splitlines()
    assert [line.split(": ")[-1] for line in lines] == [
        *(f"topic {number} is slow" for number in range(log.LIKE_IT_MAX)),
        "topic 1 is slow",
    ], "those of another place are of another kind"
    told = until(err, "more like it")
    assert told.endswith("WARNING quire.some: 7 more like it in 0.3 s, the last: topic 26 is slow")
    logging.getLogger("quire.some").warning("topic %d is slow", 99)
    assert "topic 99 is slow" in err.getvalue(), "its time is over"


def test_kinds_without_end_are_forgotten(err: Err, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "KINDS_MAX", 3)
    repeats = log.Repeats(lambda _: None)
    for number in range(100):
        record = logging.LogRecord("l", logging.INFO, "", 0, f"made {number}", (), None)
        assert repeats.filter(record)
    assert len(repeats._kinds) == 3


def test_a_line_as_json_has_its_kind_and_what_it_names(err: Err) -> None:
    log.configure(as_json=True, slow_ms=10)
    logging.getLogger("quire.some").info("bundle %s moves: %s", "a/b", ValueError("x"))
    slow.tell("publish", "t to entry 7:1", 1.4142, {"waiting": 0.01, "bookies": 1.4}, ledger=7, entry=1)
    plain, told = map(json.loads, err.getvalue().splitlines())
    assert plain["message"] == "bundle a/b moves: x"
    assert plain["event"] == "bundle %s moves: %s" and plain["args"] == ["a/b", "x"]
    assert told["message"] == "slow publish: t to entry 7:1 took 1.414 s (waiting 0.01 s, bookies 1.4 s)"
    assert told["fields"]["ledger"] == 7 and told["fields"]["parts"] == {"waiting": 0.01, "bookies": 1.4}
    assert told["level"] == "warning" and told["logger"] == "quire.slow"


def test_the_last_lines_are_kept_as_they_were_written(err: Err) -> None:
    log.configure()
    logging.getLogger("quire.some").error("a\nb " + "x" * 2 * log.RECENT_CHARS_MAX)
    assert "\n" not in log.recent_lines()[-1] and "a\\nb" in log.recent_lines()[-1]
    assert len(log.recent_lines()[-1]) == log.RECENT_CHARS_MAX


class Watch:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_only_what_is_slow_is_told_with_its_parts(err: Err) -> None:
    log.configure(slow_ms=1_000)
    clock = Watch()
    with slow.Stopwatch("load", "a topic", clock) as watch:
        clock.now_s = 0.9
        watch.part("its record")
    assert err.getvalue() == ""
    with pytest.raises(ValueError, match="x"), slow.Stopwatch("load", "another", clock) as watch:
        clock.now_s = 2.0
        watch.part("its record")
        clock.now_s = 2.5
        raise ValueError("x")
    assert "slow load: another took 1.6 s (its record 1.1 s, failing 0.5 s)" in err.getvalue()
    log.configure(slow_ms=0)
    with slow.Stopwatch("load", "a third", clock):
        clock.now_s = 10_000.0
    assert "a third" not in err.getvalue()
