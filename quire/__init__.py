"""Quire: a pub-sub log with compute and storage apart.

The packages lie at the repository's root, and this folder links to them (`quire/wire` leads to `wire/`, and so on);
`docs/architecture.md` says what each is for and in what order to read them.
"""

import os.path

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "wire")):
    raise ImportError(
        "this clone has files instead of symbolic links: run `git config core.symlinks true` "
        "and `git checkout -- quire` in the clone (Windows needs its developer mode for that)"
    )

__version__ = "0.1.0"
