"""Installation of Quire: the pip command that adds an extra to it.

The package is installed from a clone (`pip install -e .`), from a wheel or from an index. pip records which in
`direct_url.json`, see [PEP 610](https://peps.python.org/pep-0610/).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CLONE = Path(__file__).resolve().parents[1]


def pip_install(extra: str) -> str:
    """Return the command that installs an extra into this environment, for the messages of missing packages."""
    source = _source()
    url = str(source.get("url", ""))
    if "dir_info" not in source:
        return f"{_pip()} install 'quire[{extra}]{f' @ {url}' if url else ''}'"
    folder = os.path.relpath(unquote(urlsplit(url).path))
    editable = "-e " if source["dir_info"].get("editable") else ""
    if folder.startswith(".."):
        folder = unquote(urlsplit(url).path)
    elif folder != ".":
        folder = f"./{folder}"
    return f"{_pip()} install {editable}'{folder}[{extra}]'"


def _source() -> dict[str, Any]:
    """Return pip's record of the source; the clone if Quire runs from there without an installation."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow, and only for errors

    try:
        text = distribution("quire").read_text("direct_url.json")
    except PackageNotFoundError:
        return {"url": CLONE.as_uri(), "dir_info": {"editable": True}}
    return dict(json.loads(text)) if text else {}


def _pip() -> str:
    """Return this environment's pip, relative to the current directory if it is below it."""
    pip = Path(sys.prefix, "bin", "pip")
    if not pip.exists():
        return f"{sys.executable} -m pip"
    return str(pip.relative_to(Path.cwd()) if pip.is_relative_to(Path.cwd()) else pip)
