"""Callbacks that do not keep their owner alive.

What has parts is told by them what happens, and a part that simply knew its owner would make a circle: only the
collector frees those, and it hardly ever walks over what is old (`memory`). Topics that come and go would cost some
kilobytes each for good. So the owner keeps its parts, and they know it by `weakly` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TypeVarTuple
from weakref import ref

Ts = TypeVarTuple("Ts")


def weakly(method: Callable[[*Ts], None]) -> Callable[[*Ts], None]:
    """What calls a bound `method` as long as its object lives, and does nothing afterwards."""
    assert isinstance(method, MethodType)
    owner, function = ref(method.__self__), method.__func__

    def call(*args: *Ts) -> None:
        found = owner()
        if found is not None:
            function(found, *args)

    return call
