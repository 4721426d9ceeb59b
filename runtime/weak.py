"""Callbacks that do not keep their owner alive.

What has parts is told by them what happens, and a part that simply knew its owner would make a circle: only the
collector frees those, and it hardly ever walks over what is old (`memory`). Topics that come and go would cost some
kilobytes each for good. So the owner keeps its parts, and they know it by `weakly` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, ParamSpec
from weakref import ref

P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """What calls a bound `method` as long as its object lives, and does nothing afterwards."""
    assert isinstance(method, MethodType)
    return partial(_call, ref(method.__self__), method.__func__)


def _call(owner: ref[Any], function: Callable[..., None], *args: Any, **words: Any) -> None:
    found = owner()
    if found is not None:
        function(found, *args, **words)
