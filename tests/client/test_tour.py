"""The examples of docs/client.md, unchanged and in order, against a real broker.

The program at the top of the page is a file, which `tests/clients/test_examples.py` runs.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from quire.serving.broker import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
async def test_the_tour(real: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    keys = re.findall(r"^```sh\n(openssl .*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(keys) == 1
    made = await asyncio.create_subprocess_exec("sh", "-ec", keys[0], cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert await made.wait() == 0
    monkeypatch.chdir(tmp_path)
    tour = ModuleType("tour")
    monkeypatch.setitem(sys.modules, "tour", tour)
    program, *examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert "asyncio.run(main(" in program and len(examples) > 8
    for example in examples:
        text = example.replace("pulsar://127.0.0.1:6650", real.service_url)
        code = compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, vars(tour))
        if inspect.iscoroutine(running):
            await running
