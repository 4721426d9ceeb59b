"""Settings that operators change while brokers run.

    POST …/configuration/{name}/{value} ─▶ /quire/settings/{name} ─ watch ─▶ every broker applies it

A changed value is a record of the metadata store. It has precedence over flags, environment and file of every broker,
also of those that start later, until it is removed. Values are written as in a configuration file (`7d`, `64MiB`).

Each group has the settings of one class. A group applies its changes as a whole: the values of the process's start,
with those of the records. An invalid record, of another version for example, prevents a start; a running broker keeps
the values that it has, and logs the error. A group whose values cannot be applied is applied again until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, get_type_hints

from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.notify import touch
from quire.metadata.records import SettingRecord, encode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.runtime.settings import convert
from quire.runtime.tasks import Tasks
from quire.serving.operations.policy_admin import PolicyUpdates
from quire.serving.policy.resolved import defaults_of
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.topic.services import Services

OF_BROKERS: Final = (
    "archive_delay_ms",
    "archive_lag_ms",
    "auto_topic_creation",
    "deduplication",
    "delayed_delivery",
    "delayed_delivery_tick_ms",
    "message_ttl_ms",
    "metrics_topics_max",
    "publish_bytes_per_s",
    "publish_messages_per_s",
    "retention_bytes",
    "retention_ms",
    "segment_age_ms_max",
    "topic_idle_ms_max",
)
"""Settings of `BrokerSettings` that take effect at run time; all others are read once, at the start."""

RETRY_S: Final = 1.0
_UNSET: Final = SettingRecord(value="")
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class SettingsGroup:
    """Settings of one class: the current values, the names that may change, and the function that applies values."""

    values: Any
    """Values that were applied successfully."""
    names: tuple[str, ...]
    apply: Callable[[Any], Awaitable[None]]

    def __post_init__(self) -> None:
        self.start = self.values
        """Values at the start of the process."""
        self.is_applied = True
        """False after a failure, when parts of other values may be in effect."""

    def changed(self, texts: Mapping[str, str]) -> Any:
        """Return the values of the start with those of `texts`. Raises `ConfigurationError`."""
        hints = get_type_hints(type(self.start))
        specs = {spec.name: spec for spec in fields(self.start)}
        wanted = {name: text for name, text in texts.items() if name in self.names}
        values = {name: convert(specs[name], hints[name], text) for name, text in wanted.items()}
        made = replace(self.start, **values)
        made.validate()
        return made


class DynamicSettings:
    def __init__(self, store: MetadataStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._groups: list[SettingsGroup] = []
        self._followed = Followed(store, paths.SETTINGS, SettingRecord, tasks, self._on_change)
        self._applying = asyncio.Lock()

    def add(self, group: SettingsGroup) -> None:
        """Add a group, before `start`."""
        self._groups.append(group)

    async def start(self) -> None:
        """Apply the records, and follow them from now on.

        Raises `Unavailable`, and `CorruptionError` or `ConfigurationError` for an invalid record: its setting may keep
        data that the value of the process's start would delete.
        """
        await self._followed.start()
        for name in self.names():
            self._followed.get(name, _UNSET)
        for group in self._groups:
            try:
                group.changed(self.changed())
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"a setting that was changed at run time is invalid for this version: {error}; remove it by DELETE "
                    "/admin/v2/brokers/configuration/NAME at a broker of the version that wrote it"
                ) from None
        await self._apply()

    def names(self) -> list[str]:
        """List the settings that can be changed at run time."""
        return sorted(name for group in self._groups for name in group.names)

    def changed(self) -> dict[str, str]:
        """Return the changed values by name."""
        known = self.names()
        return {name: one.value for name, one in sorted(self._followed.records.items()) if name in known}

    def current(self) -> dict[str, Any]:
        """Return the values in effect on this broker of all settings that can be changed."""
        return {name: getattr(group.values, name) for group in self._groups for name in group.names}

    async def set(self, name: str, text: str) -> None:
        """Change one of `names` on all brokers; return when it takes effect on this one.

        Loaded topics may get a changed default a moment later. Raises `ConfigurationError` for an invalid value.
        """
        self._group_of(name).changed({**self.changed(), name: text})
        await touch(self._store, paths.setting(name), encode(SettingRecord(value=text)))
        await self._followed.refresh(name)
        await self._apply()

    async def unset(self, name: str) -> None:
        """Remove the change of one of `names`: each broker then uses the value of its start again."""
        with suppress(NotFound):
            await self._store.delete(paths.setting(name))
        await self._followed.refresh(name)
        await self._apply()

    def _group_of(self, name: str) -> SettingsGroup:
        return next(group for group in self._groups if name in group.names)

    def _on_change(self) -> None:
        self._tasks.start(self._follow(), "apply changed settings")

    async def _follow(self) -> None:
        """Apply changed settings, with retries until each group has applied them."""
        while True:
            try:
                await self._apply()
                return
            except Exception:  # logged by `_apply`
                await asyncio.sleep(RETRY_S)

    async def _apply(self) -> None:
        """Apply the changed settings of each group. If a group fails, apply the others, then raise its error."""
        failed: Exception | None = None
        async with self._applying:
            for group in self._groups:
                try:
                    values = group.changed(self.changed())
                except QuireError as error:
                    _log.error("cannot apply changed settings, keeping the current values: error=%s", error)
                    continue
                if values == group.values and group.is_applied:
                    continue
                group.is_applied = False
                try:
                    await group.apply(values)
                except Exception as error:
                    _log.exception("cannot apply changed settings, trying again: error=%s", error)
                    failed = failed or error
                    continue
                group.values, group.is_applied = values, True
                _log.info("settings changed: %s", ", ".join(f"{k}={v}" for k, v in self.changed().items()))
        if failed is not None:
            raise failed


def broker_settings(
    services: Services, registry: Registry, updates: PolicyUpdates, offloading: Offloading | None
) -> SettingsGroup:
    """Return the group of the broker's own settings. Defaults of policies are applied to loaded topics."""

    async def apply(settings: Any) -> None:
        services.settings = settings
        if offloading is not None:
            offloading.offloader.lag_ms = settings.archive_lag_ms
            offloading.offloader.delay_ms = settings.archive_delay_ms
        registry.policies.set_default(defaults_of(settings, services.limits))
        await updates.apply_to_all()

    return SettingsGroup(services.settings, OF_BROKERS, apply)
