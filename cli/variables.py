"""Environment variables `QUIRE_…`: a command refuses unknown ones, because a misspelt one would be ignored.

Known are the settings of all processes, the options of commands, and variables of other programs of this repository.
Services of Kubernetes whose names begin with `quire` add variables to every pod of their namespace
([service environment variables]), which are ignored.

[service environment variables]: https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import variable_of

PREFIX: Final = "QUIRE_"

SERVERS: Final = ("standalone", "broker", "bookie", "gateway", "local", "zookeeper")
"""Subcommands with settings."""

OF_COMMANDS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ADMIN_URL SERVICE_URL CONTEXT TOKEN TOKEN_FILE USER PASSWORD_FILE TLS_TRUST_CERTS TLS_CERTIFICATE TLS_KEY"
    ).split()
)
"""Options of commands that connect to brokers."""

OF_OTHER_PROGRAMS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "IMAGE JAVA_IMAGE PORT HTTP_PORT "  # the compose files
        "CHAOS_HISTORIES CHAOS_KILLS CHAOS_SECONDS CHAOS_SEED CRASH_SEEDS EXAMPLES HANG_SECONDS HOSTILE_ACTS "
        "HOSTILE_SECONDS REWRITE REWRITE_GOLDEN SIMULATION_SECONDS SPARK_PLANS SPARK_SEED TEST_S3 "
        "UPGRADE_MESSAGES_PER_S"  # the tests
    ).split()
)

_OF_KUBERNETES: Final = re.compile(
    r"QUIRE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

_registered: Final[set[type]] = set()
"""Settings of the imported subcommands."""


def register(kinds: Iterable[type]) -> None:
    """Remember the settings of a subcommand, whose variables are known."""
    _registered.update(kinds)


def refuse_unknown_variables(kinds: Iterable[type] = (), environment: Mapping[str, str] = os.environ) -> None:
    """Raise `ConfigurationError` if the environment has a variable `QUIRE_…` that no process or command reads.

    `kinds` are the settings of the running command. Other settings are imported only for a further
    variable, because that takes long.
    """
    known = {*OF_COMMANDS, *OF_OTHER_PROGRAMS, *_variables(kinds)}
    unknown = [name for name in environment if name.startswith(PREFIX) and name not in known]
    unknown = [name for name in unknown if not _OF_KUBERNETES.fullmatch(name)]
    if not unknown:
        return
    known |= all_settings()
    unknown = sorted(name for name in unknown if name not in known)
    if unknown:
        raise ConfigurationError(
            f"the environment sets {', '.join(_with_nearest(name, known) for name in unknown)}: correct or unset it"
        )


def all_settings() -> set[str]:
    """Return the variables of the settings of all processes and clients."""
    from quire.client import ClientSettings, ConsumerSettings, ProducerSettings

    for name in SERVERS:
        import_module(f"quire.cli.{name}")  # its command registers its settings
    return _variables([ClientSettings, ConsumerSettings, ProducerSettings, *_registered])


def _variables(kinds: Iterable[type]) -> set[str]:
    return {variable_of(spec.name) for kind in kinds for spec in fields(kind)}


def _with_nearest(name: str, known: set[str]) -> str:
    words = sorted(one.removeprefix(PREFIX) for one in known - OF_OTHER_PROGRAMS)
    nearest = get_close_matches(name.removeprefix(PREFIX), words, n=1)
    return f"{name}, which nothing reads{f' (did you mean {PREFIX}{nearest[0]}?)' if nearest else ''}"
