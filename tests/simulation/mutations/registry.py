"""Registry of the mutations, which the other modules of this package fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutation:
    """One mutation. `rule` is the rule that it violates, `kind` the kind of history that must detect it."""

    name: str
    rule: str
    kind: str
    what: str
    apply: Callable[[], AbstractContextManager[None]]


MUTATIONS: Final[dict[str, Mutation]] = {}


def mutation(rule: str, kind: str) -> Callable[[Callable[[], Iterator[None]]], Mutation]:
    """Register a mutation under its function's name. The function is a context manager that applies the patch."""

    def register(apply: Callable[[], Iterator[None]]) -> Mutation:
        name = apply.__name__
        assert name not in MUTATIONS and apply.__doc__
        MUTATIONS[name] = Mutation(name, rule, kind, apply.__doc__, contextmanager(apply))
        return MUTATIONS[name]

    return register
