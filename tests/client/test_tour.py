"""The examples of docs/client.md, as they are and in their order, against a real broker."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from quire.serving.broker import Broker
from tests.clients.programs import write_keys

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


async def test_the_tour(real: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(tmp_path)
    monkeypatch.chdir(tmp_path)
    tour = ModuleType("tour")
    monkeypatch.setitem(sys.modules, "tour", tour)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) > 8
    for example in examples:
        text = example.replace("pulsar://127.0.0.1:6650", real.service_url)
        code = compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, vars(tour))
        if inspect.iscoroutine(running):
            await running
