"""What people meet in their first hour: wrong addresses, mistyped topics, terminals, the tab key."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from quire.cli.output import NOT_FOUND, TRY_AGAIN, WRONG_USE
from quire.process.child import QUIRE
from tests.cli.running import Ran, Server, quire


@pytest.fixture(autouse=True)
def address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_URL", server.http_url)
    monkeypatch.setenv("QUIRE_SERVICE_URL", server.service_url)


def produce(topic: str, text: bytes, *words: str) -> Ran:
    done = subprocess.run([*QUIRE, "produce", topic, *words], input=text, capture_output=True, timeout=60)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def consume(topic: str, *words: str) -> Ran:
    done = subprocess.run(
        [*QUIRE, "consume", topic, "--no-follow", *words], capture_output=True, text=True, timeout=60
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_a_child_is_not_what_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "quire").mkdir()
    (tmp_path / "quire" / "__init__.py").write_text('__version__ = "of the folder"\n')
    done = subprocess.run([*QUIRE, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("quire, version"), done.stderr
    assert "of the folder" not in done.stdout


def test_a_closed_port_is_told_soon() -> None:
    began = time.monotonic()
    done = produce("t", b"x\n", "--service-url", "pulsar://127.0.0.1:1")
    assert done.code == TRY_AGAIN and "cannot connect to pulsar://127.0.0.1:1" in done.err, done
    assert time.monotonic() - began < 9, "it is tried for two seconds, and not for the operation's fifteen"


def test_the_port_of_rest_is_told_by_its_name(server: Server) -> None:
    done = produce("t", b"x\n", "--service-url", server.http_url.replace("http://", "pulsar://"))
    assert done.code == TRY_AGAIN and "the peer speaks HTTP" in done.err and done.err.count("\n") == 1


def test_the_bookie_of_a_standalone_is_shown_and_cannot_leave() -> None:
    (bookie,) = quire("bookies", "list", "--json").json
    assert bookie["state"] == "up" and not bookie["address"]
    assert quire("bookies", "show", bookie["uuid"][:8], "--json").json["uuid"] == bookie["uuid"]
    for verb in ("decommission", "keep", "recover"):
        ran = quire("bookies", verb, bookie["uuid"])
        assert (ran.code, ran.out, ran.err.count("\n")) == (WRONG_USE, "", 1)
        assert f"bookie {bookie['uuid']} is a part of the server's process" in ran.err


def test_a_mistyped_topic_is_not_made() -> None:
    done = consume("mistypd")
    assert (
        done.code == NOT_FOUND
        and done.err == "quire: topic mistypd does not exist; use --create to create it\n"
    )
    assert "mistypd" not in quire("topics", "list").out
    assert consume("wanted", "--create", "--wait", "10ms") == Ran(0, "", "")
    assert "wanted" in quire("topics", "list").out


def test_without_a_name_the_subscription_ends_with_the_command() -> None:
    produce("nameless", b"one\ntwo\n")
    assert consume("nameless").out == consume("nameless").out == "one\ntwo\n"
    assert quire("subscriptions", "list", "nameless").out == ""


def test_a_terminal_is_not_steered_by_messages() -> None:
    produce("steering", b"a\tb\x1b[31m\xff\xc2\x9b \xc3\xa9\n")
    assert consume("steering", "--json").json["payload_base64"]
    terminal, of_the_command = pty.openpty()
    try:
        subprocess.run(
            [*QUIRE, "consume", "steering", "-n", "1"], stdout=of_the_command, check=True, timeout=60
        )
        shown = os.read(terminal, 1000)
    finally:
        os.close(terminal)
        os.close(of_the_command)
    assert shown.decode() == "a\tb\\x1b[31m\\xff\\x9b é\r\n"


def test_lines_that_are_typed_end_with_ctrl_d_and_no_bar_moves_over_them() -> None:
    terminal, of_the_command = pty.openpty()
    process = subprocess.Popen(
        [*QUIRE, "produce", "typed"],
        stdin=of_the_command,
        stderr=of_the_command,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(of_the_command)
    try:
        shown = b""
        while b"Ctrl-D" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"one\ntwo\n\x04")
        out, _ = process.communicate(timeout=60)
        with suppress(OSError):  # all was read
            while more := os.read(terminal, 1000):
                shown += more
    finally:
        process.kill()
        os.close(terminal)
    assert out.startswith("published 2 messages") and b"\x1b" not in shown, shown
    assert consume("typed").out == "one\ntwo\n"


def test_schemas_of_a_topic_that_is_not_there() -> None:
    ran = quire("schemas", "list", "nowhere")
    assert (ran.code, ran.out) == (NOT_FOUND, "") and "does not exist" in ran.err
    quire("topics", "create", "without-schema")
    assert quire("schemas", "list", "without-schema", "--json").json == []


def test_seek_says_that_times_are_accepted() -> None:
    quire("subscriptions", "create", "sought", "s", "--create-topic")
    ran = quire("subscriptions", "seek", "sought", "s", "--to", "noon")
    assert ran.code == WRONG_USE and "a time such as 2026-01-31T12:00:00" in ran.err and "15m" in ran.err
    for to in ("15m", "2026-01-31T12:00:00", "2026-01-31", "latest"):
        assert quire("subscriptions", "seek", "sought", "s", "--to", to).code == 0


def test_the_tab_key_completes_topics() -> None:
    for name in ("tabbed-1", "tabbed-2"):
        quire("topics", "create", name)
    assert _completed("topics", "stats", "tabb") == ["tabbed-1", "tabbed-2"]
    assert _completed("consume", "public/default/tabbed-2") == ["public/default/tabbed-2"]
    assert _completed("consume", "nowhere/at-all/x") == []
    assert "--service-url" in _completed("produce", "--")


def _completed(*words: str) -> list[str]:
    environment = {
        **os.environ,
        "_QUIRE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("quire", *words)),
    }
    environment["COMP_CWORD"] = str(len(words))
    # The shell's variable is named after the program, so it must be called as people call it.
    program = "import sys; sys.argv[0] = 'quire'; from quire.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_json_on_a_terminal_is_json() -> None:
    produce("as-json", b"\x1b[31m\n")
    assert json.loads(consume("as-json", "--json").out)["payload"] == "\x1b[31m"
