"""Quire: a pub-sub log with compute and storage apart.

The rooms of this package are folders at the repository's root (`wire/` is `quire.wire`, and so on);
`docs/architecture.md` says what each is for and in what order to read them.
"""

__version__ = "0.1.0"
