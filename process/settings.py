"""Settings that all kinds of processes have, and loading of a command's settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from quire.runtime import settings
from quire.runtime.errors import ConfigurationError
from quire.runtime.redaction import without_secrets
from quire.runtime.settings import MILLISECONDS, Loaded, setting
from quire.wal.settings import WalSettings

S = TypeVar("S")

SECURITY: Final = (
    "File with TLS, authentication and authorisation; empty: plain ports, where everybody may do everything."
)


class ProcessSettings(Protocol):
    """Settings of every kind of process."""

    @property
    def metadata(self) -> str: ...

    @property
    def security(self) -> str: ...


@dataclass(frozen=True)
class LogSettings:
    """Log settings of every process."""

    log_level: str = setting("info", "Least severe line of the log: debug, info, warning or error.")
    log_json: bool = setting(False, "Log lines as JSON.")
    log_slow_ms: int = setting(
        1_000,
        "Operations that take longer are named in the log, with what took how long; 0: none.",
        unit=MILLISECONDS,
    )

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigurationError(f"log_level {self.log_level!r} is not debug, info, warning or error")
        if self.log_slow_ms < 0:
            raise ConfigurationError("log_slow_ms must not be negative")


def check_cluster_store(metadata: str) -> None:
    """Require the URL of a cluster's metadata store. Raises `ConfigurationError`."""
    if not metadata:
        raise ConfigurationError("metadata must name the cluster's store, such as zk://127.0.0.1:2181/quire")


def wal_defaults(wal: WalSettings) -> dict[str, Any]:
    """Return the defaults of a broker with a write-ahead log on object storage, which has longer latencies."""
    return {"bytes_in_flight_max": 2 * wal.wal_memory_bytes} if wal.wal else {}


class LoadedSettings:
    """Settings of a process by class: `loaded[BrokerSettings]`. Iteration yields them with their sources."""

    def __init__(self, loaded: tuple[Loaded[Any], ...]) -> None:
        self._loaded = {type(one.values): one for one in loaded}

    def __getitem__(self, kind: type[S]) -> S:
        return cast(S, self._loaded[kind].values)

    def __iter__(self) -> Iterator[Loaded[Any]]:
        return iter(self._loaded.values())


@dataclass(frozen=True)
class Given:
    """Flags and configuration file of a command. The constructor prints a warning for each flag with a secret."""

    flags: Mapping[str, Any]
    config: Path | None

    def __post_init__(self) -> None:
        for name, value in self.flags.items():
            if value is not None and without_secrets(text := str(value)) != text:
                print(_in_the_process_list(name), file=sys.stderr)

    def load(self, kind: type[S], defaults: Mapping[str, Any] | None = None) -> S:
        """Load the settings of `kind`.

        `defaults` override the defaults of the class; flags, environment and file override both.
        """
        return settings.load(kind, self.flags, file=self.config, defaults=defaults).values

    def load_all(self, kinds: tuple[type, ...], defaults: Mapping[str, Any] | None = None) -> LoadedSettings:
        """Load the settings of all `kinds`. Raises `ConfigurationError`, also for unknown keys in the file."""
        if self.config is not None:
            settings.refuse_unknown_keys(self.config, kinds)
        return LoadedSettings(
            tuple(settings.load(kind, self.flags, file=self.config, defaults=defaults) for kind in kinds)
        )


def _in_the_process_list(name: str) -> str:
    return (
        f"warning: --{name.replace('_', '-')} has a secret, which all users can see in the process list: "
        f"set {settings.variable_of(name)} in the environment, or {name} in the file of --config"
    )
