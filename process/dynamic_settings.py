"""Settings of a process with a broker that operators change at run time, besides the broker's own ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.process.settings import LogSettings, ProcessSettings
from quire.runtime.log import set_level
from quire.serving.broker import Broker
from quire.serving.operations.dynamic_settings import SettingsGroup


def follow_log(broker: Broker, settings: LogSettings) -> None:
    """Let operators change what the process logs."""

    async def apply(changed: LogSettings) -> None:
        set_level(changed.log_level, slow_ms=changed.log_slow_ms)

    broker.admin.settings.add(SettingsGroup(settings, ("log_level", "log_slow_ms"), apply))


def follow_moves(broker: Broker, settings: ProcessSettings, limit: Callable[[int], None]) -> None:
    """Let operators change the number of bundles that the broker gives away per minute; `limit` sets it."""

    async def apply(changed: Any) -> None:
        limit(changed.balance_moves_per_minute_max)

    broker.admin.settings.add(SettingsGroup(settings, ("balance_moves_per_minute_max",), apply))
