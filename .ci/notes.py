"""Print the section of CHANGELOG.md for one version: `python .ci/notes.py 0.1.0`."""

import re
import sys
from pathlib import Path


def main() -> None:
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    found = re.search(
        rf"^## {re.escape(sys.argv[1])} .*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None:
        sys.exit(f"CHANGELOG.md has no section for version {sys.argv[1]}")
    print(found[1].strip())


if __name__ == "__main__":
    main()
