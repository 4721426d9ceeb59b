"""Follow a message from the read buffer of a producer's socket to the disk, and back to its receipt, as an editor does.

Each step is one "go to definition" of pyright's language server. A step may end at a Protocol or at a stored callable;
then its docstring must name the code that is called, so that a reader never has to guess.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SERVER = Path(sys.executable).with_name("pyright-langserver")


class Step(NamedTuple):
    """`name`, as it is used in the function `inside`, is defined in `leads_to`; a port's docstring names `then`."""

    inside: str
    name: str
    leads_to: str
    then: str = ""


ROAD = (
    # From the socket to the topic's publisher.
    Step(
        "serving/session/session.py:Session.buffer_updated", "received", "serving/session/inbound.py:Inbound"
    ),
    Step("serving/session/inbound.py:Inbound.received", "received", "wire/frame_buffer.py:FrameBuffer"),
    Step(
        "serving/session/inbound.py:Inbound.received",
        "carry_out",
        "serving/session/inbound.py:Receiver",
        then="session.Session",
    ),
    Step(
        "serving/session/session.py:Session.carry_out",
        "publish",
        "serving/session/producer_end.py:ProducerEnd",
    ),
    Step(
        "serving/session/producer_end.py:ProducerEnd.publish", "publish", "serving/topic/publish.py:Publisher"
    ),
    Step("serving/topic/publish.py:Publisher.publish", "due", "serving/topic/turn.py:Turn"),
    # The end of the turn.
    Step("serving/topic/turn.py:Turn._end", "cut", "serving/topic/turn.py:Due", then="publish.Publisher"),
    Step("serving/topic/publish.py:Publisher.cut", "_cut_one", "serving/topic/publish.py:Publisher"),
    Step("serving/topic/publish.py:Publisher._cut_one", "cut", "wire/block.py:cut"),
    Step("serving/topic/publish.py:Publisher.cut", "write", "serving/topic/publish.py:_Ledger"),
    Step("serving/topic/publish.py:_Ledger.__init__", "write", "ledger/writer.py:LedgerWriter"),
    Step("ledger/writer.py:LedgerWriter.__init__", "add", "ledger/writer_core.py:WriterCore"),
    Step("ledger/writer_core.py:WriterCore.add", "_send", "ledger/writer_core.py:WriterCore"),
    Step(
        "ledger/writer_core.py:WriterCore.__init__",
        "send",
        "ledger/writer_core.py:WriterEffects",
        then="writer.BlockWriter",
    ),
    Step("ledger/writer.py:BlockWriter.__init__", "send", "ledger/outbox.py:Outbox"),
    Step("ledger/outbox.py:Outbox.send", "_flush", "ledger/outbox.py:Outbox"),
    Step("ledger/outbox.py:Outbox._flush", "_dispatch", "ledger/outbox.py:Outbox"),
    Step(
        "ledger/outbox.py:Outbox._dispatch",
        "add",
        "wire/bookie.py:BookiePort",
        then="ledger.bookie_client.BookieClient",
    ),
    # To the bookie, and to its disk.
    Step("ledger/bookie_client.py:BookieClient.add", "_send", "ledger/bookie_client.py:BookieClient"),
    Step("ledger/bookie_client.py:BookieClient._send", "send", "ledger/bookie_client.py:_Connection"),
    Step("bookie/server.py:_Connection.buffer_updated", "_begin", "bookie/server.py:_Connection"),
    Step("bookie/server.py:_Connection._begin", "add", "bookie/storage.py:Storage"),
    Step("bookie/storage.py:Storage.add", "add", "bookie/requests.py:Requests"),
    Step("bookie/requests.py:Requests.add", "add", "bookie/intake.py:Intake"),
    Step("bookie/intake.py:Intake.add", "_admit", "bookie/intake.py:Intake"),
    Step(
        "bookie/intake.py:Intake._admit", "append", "bookie/neighbours.py:Journaling", then="journal.Journal"
    ),
    Step("bookie/journal.py:Journal.append", "_write_next", "bookie/journal.py:Journal"),
    Step("bookie/journal.py:Journal._write_next", "_write", "bookie/journal.py:Journal"),
    Step("bookie/journal.py:Journal._write", "submit", "runtime/disk.py:Worker", then="DiskThread"),
    Step("bookie/journal.py:Journal._write", "write", "runtime/disk.py:File", then="_RealFile"),
    Step("runtime/disk.py:_RealFile.write", "RWF_DSYNC", "os"),
    # Back to the receipt.
    Step("bookie/journal.py:Journal._write", "_answer_group", "bookie/journal.py:Journal"),
    Step("bookie/journal.py:Journal._answer_group", "_tell", "bookie/journal.py:_tell"),
    Step(
        "bookie/journal.py:_tell", "waiters", "bookie/journal_core.py:Group", then="server._Connection._begin"
    ),
    Step("bookie/server.py:_Connection._begin", "_answer", "bookie/server.py:_Connection"),
    Step("bookie/server.py:_Connection._answer", "_flush", "bookie/server.py:_Connection"),
    Step("ledger/bookie_client.py:_Connection.buffer_updated", "answer", "ledger/bookie_client.py:_InFlight"),
    Step("ledger/bookie_client.py:BookieClient.add", "answer", "ledger/bookie_client.py:BookieClient"),
    Step("ledger/outbox.py:Outbox._dispatch", "_distribute", "ledger/outbox.py:_distribute"),
    Step("ledger/outbox.py:_distribute", "advance", "ledger/writer_core.py:AnswerSink", then="WriterCore"),
    Step(
        "ledger/writer_core.py:WriterCore.advance",
        "confirmed",
        "ledger/writer_core.py:WriterEffects",
        then="writer.BlockWriter",
    ),
    Step("ledger/writer.py:LedgerWriter.confirmed", "_tell", "ledger/writer.py:LedgerWriter"),
    Step(
        "ledger/writer.py:LedgerWriter.__init__",
        "confirmed",
        "ledger/writer.py:WriterListener",
        then="serving.topic.writing.Writing",
    ),
    Step("serving/topic/writing.py:Writing.__init__", "confirmed", "serving/topic/publish.py:Publisher"),
    Step(
        "serving/topic/publish.py:Publisher.confirmed",
        "write",
        "serving/topic/producers.py:ProducerPort",
        then="session.producer_end.ProducerEnd",
    ),
    Step(
        "serving/session/producer_end.py:ProducerEnd.__init__",
        "write",
        "serving/session/outbound.py:Outbound",
    ),
)


class LanguageServer:
    """pyright's language server over a pipe; https://microsoft.github.io/language-server-protocol/"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(SERVER), "--stdio"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._requests = 0
        self._open: set[Path] = set()
        folder = {"uri": ROOT.as_uri(), "name": ROOT.name}
        client = {"workspace": {"configuration": True}}
        self.ask(
            "initialize",
            processId=None,
            rootUri=ROOT.as_uri(),
            capabilities=client,
            workspaceFolders=[folder],
        )
        self._write({"method": "initialized", "params": {}})

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def definitions(self, path: Path, line: int, column: int) -> list[tuple[Path, int]]:
        """Return (file, line) of each definition of the name at a place; lines and columns begin with 0."""
        if path not in self._open:
            self._open.add(path)
            document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": path.read_text()}
            self._write({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        place = {"line": line, "character": column}
        found = self.ask("textDocument/definition", textDocument={"uri": path.as_uri()}, position=place)
        return [
            (Path(one["uri"].removeprefix("file://")).resolve(), one["range"]["start"]["line"])
            for one in found or ()
        ]

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; answer the server's own requests meanwhile."""
        self._requests += 1
        self._write({"id": self._requests, "method": method, "params": params})
        while True:
            message = self._read()
            if "method" in message and "id" in message:
                self._write({"id": message["id"], "result": self._answer(message)})
            elif message.get("id") == self._requests:
                return message["result"]

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        python = {"pythonPath": sys.executable}
        return [python if item.get("section") == "python" else {} for item in message["params"]["items"]]

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        stdout, length = self._process.stdout, 0
        assert stdout is not None
        while header := stdout.readline().strip():
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        message: dict[str, Any] = json.loads(stdout.read(length))
        return message


Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find(path: Path, qualified: str) -> Scope:
    """Return the class or function of a file by its qualified name."""
    scope: Scope = ast.parse(path.read_text())
    for name in qualified.split("."):
        scope = next(
            one
            for one in scope.body
            if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name
        )
    return scope


def uses(path: Path, qualified: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield (line, column) of each use of a name or an attribute in a function; both begin with 0."""
    lines = path.read_text().splitlines()
    for node in ast.walk(find(path, qualified)):
        if isinstance(node, ast.Attribute) and node.attr == name:
            assert node.end_lineno and node.end_col_offset
            line = node.end_lineno - 1
            yield line, len(lines[line].encode()[: node.end_col_offset].decode()) - 1
        elif isinstance(node, ast.Name) and node.id == name:
            yield node.lineno - 1, node.col_offset


def texts(path: Path, qualified: str) -> str:
    """Return the docstrings of a class: its own, and those of its attributes."""
    return " ".join(
        node.value.value
        for node in ast.walk(find(path, qualified))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@pytest.fixture(scope="module")
def server() -> Iterator[LanguageServer]:
    if not SERVER.exists():
        pytest.skip("pyright is not installed")
    server = LanguageServer()
    yield server
    server.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ROAD, ids=lambda step: f"{step.inside.rpartition(':')[2]}-{step.name}")
def test_go_to_definition_leads_on(server: LanguageServer, step: Step) -> None:
    file, _, qualified = step.inside.partition(":")
    path = ROOT / file
    found = [place for use in uses(path, qualified, step.name) for place in server.definitions(path, *use)]
    assert found, f"the language server resolves no {step.name} in {step.inside}"
    target, _, scope_name = step.leads_to.partition(":")
    if not scope_name:
        assert any(place.parent.name == target or place.stem == target for place, _ in found), found
        return
    scope = find(ROOT / target, scope_name)
    assert not isinstance(scope, ast.Module) and scope.end_lineno
    assert any(
        place == ROOT / target and scope.lineno - 1 <= line < scope.end_lineno for place, line in found
    ), found
    if step.then:
        assert f"`{step.then}`" in texts(ROOT / target, scope_name), (
            f"{step.leads_to} does not name `{step.then}`"
        )
