"""The settings of whole processes, and how click's flags are made from settings classes.

A process has several classes of settings (bookie, broker, …) whose names do not collide. Every one is a flag,
a `QUIRE_…` variable and a key of the file given with `--config`; see `quire.runtime.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import click

from quire.runtime import log, settings
from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import MILLISECONDS, setting
from quire.wal.settings import WalSettings

S = TypeVar("S")

SECURITY: Final = (
    "File with TLS, authentication and authorisation; empty: plain ports, where everybody may do everything."
)


class LogSettings(Protocol):
    """What the settings of every process have of its log."""

    @property
    def log_level(self) -> str: ...

    @property
    def log_json(self) -> bool: ...

    @property
    def log_slow_ms(self) -> int: ...


def check_log(settings: LogSettings) -> None:
    """Raises `ConfigurationError`."""
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigurationError(f"log_level {settings.log_level!r} is not debug, info, warning or error")
    if settings.log_slow_ms < 0:
        raise ConfigurationError("log_slow_ms must not be negative")


def start_log(settings: LogSettings) -> None:
    log.configure(settings.log_level, as_json=settings.log_json, slow_ms=settings.log_slow_ms)


def check_cluster_store(metadata: str) -> None:
    """Raises `ConfigurationError`: a process of a cluster has no metadata store of its own."""
    if not metadata:
        raise ConfigurationError("metadata must name the cluster's store, such as zk://127.0.0.1:2181/quire")


def wal_defaults(wal: WalSettings) -> dict[str, Any]:
    """Where a broker with a write-ahead log on object storage differs: what is there is longer on its way."""
    return {"bytes_in_flight_max": 2 * wal.wal_memory_bytes} if wal.wal else {}


@dataclass(frozen=True)
class StandaloneSettings:
    """Everything in one process. What is kept lies in the directory `data`, unless it is told otherwise."""

    data: str = setting("data", "Directory for everything that is kept.")
    metadata: str = setting("", "Metadata store, sqlite:///PATH; empty: in the data directory.")
    archive: str = setting(
        "",
        "Object store for sealed segments, file:///PATH or s3://BUCKET/PREFIX; empty: in the data directory.",
    )
    http: str = setting(
        "127.0.0.1:8080", "Address of the REST interface, /metrics and /health; port 0: any free."
    )
    security: str = setting("", SECURITY)
    log_level: str = setting("info", "Least severe line of the log: debug, info, warning or error.")
    log_json: bool = setting(False, "Log lines as JSON.")
    log_slow_ms: int = setting(
        1_000,
        "Operations that take longer are named in the log, with what took how long; 0: none.",
        unit=MILLISECONDS,
    )

    def validate(self) -> None:
        """Raises `ConfigurationError`."""
        check_log(self)
        settings.parse_address(self.http, "http")
        if not self.data:
            raise ConfigurationError("data must name a directory")


def settings_options(
    *kinds: type, defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a click command `--config` and a flag for each setting of `kinds`.

    The command gets them as keyword arguments; what was not given is None. `defaults` are the process's own, which
    its help shows in place of the classes'.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for kind in reversed(kinds):
            for spec in reversed(fields(kind)):
                shown = settings.show(spec, (defaults or {}).get(spec.name, spec.default))
                option = click.option(
                    f"--{spec.name.replace('_', '-')}",
                    spec.name,
                    default=None,
                    metavar=_metavar(spec.default, spec.metadata.get("unit", "")),
                    help=f"{spec.metadata['prose']} [{shown}]" if shown else spec.metadata["prose"],
                )
                command = option(command)
        config = click.option(
            "--config", type=click.Path(path_type=Path, dir_okay=False), help="A TOML file."
        )
        return config(command)

    return decorate


def _metavar(default: Any, unit: str) -> str:
    if unit:
        return "SIZE" if unit == settings.BYTES else "TIME"
    if isinstance(default, bool):
        return "true|false"
    return "NUMBER" if isinstance(default, int) else "TEXT"


@dataclass(frozen=True)
class Given:
    """The flags and the file that a command was given."""

    flags: Mapping[str, Any]
    config: Path | None

    def load(self, kind: type[S], defaults: Mapping[str, Any] | None = None) -> settings.Loaded[S]:
        """Settings of `kind`; `defaults` are this process's own, weaker than anything a person wrote."""
        return settings.load(kind, self.flags, file=self.config, defaults=defaults)


def check_file(config: Path | None, *kinds: type) -> None:
    """Raise `ConfigurationError` when the file sets what none of `kinds` has."""
    if config is not None:
        settings.refuse_unknown_keys(config, kinds)
