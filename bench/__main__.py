"""List of the benchmarks, printed by `python -m bench`."""

from __future__ import annotations

import ast
from pathlib import Path


def main() -> None:
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        first = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[:1]
        print(f"python -m bench.{file.stem:<12} {''.join(first)}")


if __name__ == "__main__":
    main()
