"""The list of mutations, which the files beside this one fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutation:
    """One mistake. `rule`: what it breaks; `kind`: the histories that are to find it."""

    name: str
    rule: str
    kind: str
    what: str
    apply: Callable[[], AbstractContextManager[None]]


MUTATIONS: Final[dict[str, Mutation]] = {}


def mutation(rule: str, kind: str) -> Callable[[Callable[[], Iterator[None]]], Mutation]:
    """Register a patch under its function's name, which begins to work when it is entered and ends when it is left."""

    def register(apply: Callable[[], Iterator[None]]) -> Mutation:
        name = apply.__name__
        assert name not in MUTATIONS and apply.__doc__
        MUTATIONS[name] = Mutation(name, rule, kind, apply.__doc__, contextmanager(apply))
        return MUTATIONS[name]

    return register
