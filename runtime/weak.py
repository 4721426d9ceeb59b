"""Weak callbacks, which do not keep their owner alive.

An owner references its parts, and its parts call it back, which would form a reference cycle. Only the garbage
collector frees cycles, and it rarely scans old objects (`memory`), so each unloaded topic would leak some kilobytes. So
parts reference their owner only by `weakly`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TypeVarTuple
from weakref import ref

Ts = TypeVarTuple("Ts")


def weakly(method: Callable[[*Ts], None]) -> Callable[[*Ts], None]:
    """Return a callable that calls the bound `method` while its object is alive, and does nothing afterwards."""
    assert isinstance(method, MethodType)
    owner, function = ref(method.__self__), method.__func__

    def call(*args: *Ts) -> None:
        found = owner()
        if found is not None:
            function(found, *args)

    return call
