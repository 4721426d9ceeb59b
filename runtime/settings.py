"""Settings: one frozen dataclass per service, which defines the keys of the file, the environment and the flags.

A setting has one name. `journal_group_bytes_max` is the flag `--journal-group-bytes-max`, the variable
`QUIRE_JOURNAL_GROUP_BYTES_MAX` and the TOML key `journal_group_bytes_max`. Precedence: flag, environment, file,
default. Sizes and times are written with units: `64MiB`, `250ms`, `7d`.

A settings class looks like this:

    @dataclass(frozen=True)
    class BookieSettings:
        memtable_bytes: int = setting(64 * MIB, "One of the two memtables; both full stop the sockets.", unit=BYTES)

        def validate(self) -> None: ...      # raises ConfigurationError

`load` returns a settings object with the source of each value, for `quire config show`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from quire.runtime.errors import ConfigurationError
from quire.runtime.redaction import without_secrets

BYTES = "bytes"
MILLISECONDS = "ms"

_SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_TIME_UNITS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME_UNITS |= {"w": 7 * 86_400_000}
_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}

S = TypeVar("S")


def setting(default: Any, prose: str, *, unit: str = "") -> Any:
    """Define a setting: its default, its description in one sentence, and its unit, `BYTES` or `MILLISECONDS`."""
    return field(default=default, metadata={"prose": prose, "unit": unit})


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """Settings, and the source of each by name: `flag`, `environment`, `file` or `default`."""

    values: S
    sources: Mapping[str, str]


def parse_size(text: str) -> int:
    """Parse `64MiB` to bytes. Raises `ConfigurationError`."""
    return _parse_number(text, _SIZE_UNITS, "a size such as 64MiB")


def parse_duration_ms(text: str) -> int:
    """Parse `250ms`, `7d` to milliseconds. Raises `ConfigurationError`."""
    return _parse_number(text, _TIME_UNITS, "a time such as 250ms or 7d")


def parse_address(text: str, name: str = "address") -> tuple[str, int]:
    """Parse `127.0.0.1:6650` or `[::1]:6650` to host and port. Raises `ConfigurationError` that contains `name`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"{name} {text!r} is not an address such as 127.0.0.1:6650")
    return host.removeprefix("[").removesuffix("]"), int(port)


def format_address(host: str, port: int) -> str:
    """Format host and port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_number(text: str, units: Mapping[str, int], what: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ConfigurationError(f"{text!r} is not {what}")
    return int(float(match[1]) * units[match[2].lower()])


def format_size(count: int) -> str:
    """Format bytes exactly, with the largest unit that divides them."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def format_duration_ms(ms: int) -> str:
    """Format milliseconds exactly, with a unit."""
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms and ms % factor == 0:
            return f"{ms // factor}{unit}"
    return f"{ms}ms"


def load(
    kind: type[S],
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Loaded[S]:
    """Load a settings object and validate it. Raises `ConfigurationError` that contains the setting's name.

    `flags` maps names to values; None means that the flag was not given. `defaults` override those of `kind`.
    """
    from_file = read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    hints = get_type_hints(kind)
    for spec in fields(kind):  # type: ignore[arg-type]
        found = _find(spec, flags or {}, environment, from_file)
        if found is None or (found[1] == "" and spec.name in (defaults or {})):  # "": the process's default
            sources[spec.name] = "default"
            if spec.name in (defaults or {}):
                values[spec.name] = (defaults or {})[spec.name]
            continue
        sources[spec.name], raw = found
        values[spec.name] = convert(spec, hints[spec.name], raw)
    made = kind(**values)
    validate = getattr(made, "validate", None)
    if validate is not None:
        validate()
    return Loaded(made, sources)


def read_file(file: Path) -> dict[str, Any]:
    """Read a TOML file's keys. Raises `ConfigurationError` if it is unreadable."""
    import tomllib  # its patterns take time to compile, and most starts read no file

    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read the configuration file {file}: {error}") from error


def refuse_unknown_keys(file: Path, kinds: tuple[type, ...]) -> None:
    """Raise `ConfigurationError` if the file has a key that is in none of `kinds`."""
    known = {spec.name for kind in kinds for spec in fields(kind)}
    unknown = sorted(set(read_file(file)) - known)
    if unknown:
        raise ConfigurationError(f"{file} sets {', '.join(unknown)}, which is not a setting of this process")


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"QUIRE_{name.upper()}"


def _find(
    spec: Field[Any], flags: Mapping[str, Any], environment: Mapping[str, str], from_file: Mapping[str, Any]
) -> tuple[str, Any] | None:
    if flags.get(spec.name) is not None:
        return "flag", flags[spec.name]
    variable = variable_of(spec.name)
    if variable in environment:
        return "environment", environment[variable]
    if spec.name in from_file:
        return "file", from_file[spec.name]
    return None


def convert(spec: Field[Any], hint: Any, raw: Any) -> Any:
    """Convert `raw` (text or a TOML value) to the field's type. Raises `ConfigurationError` that contains its name."""
    try:
        return _convert(spec, hint, raw)
    except ConfigurationError as error:
        raise ConfigurationError(f"setting {spec.name}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"setting {spec.name}: {raw!r} is not {hint.__name__}") from error


def _convert(spec: Field[Any], hint: Any, raw: Any) -> Any:
    if isinstance(raw, str):
        if spec.metadata.get("unit") == BYTES:
            return parse_size(raw)
        if spec.metadata.get("unit") == MILLISECONDS:
            return parse_duration_ms(raw)
        if hint is bool:
            return _parse_bool(raw)
    if hint is bool and not isinstance(raw, bool):
        raise ConfigurationError(f"{raw!r} is not true or false")
    if (hint is int and isinstance(raw, bool)) or (hint is str and not isinstance(raw, str)):
        raise ConfigurationError(f"{raw!r} is not {'a number' if hint is int else 'a text'}")
    return hint(raw)


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ConfigurationError(f"{text!r} is not true or false")


def show(spec: Field[Any], value: Any) -> str:
    """Format a value as in the file or on the command line."""
    if spec.metadata.get("unit") and value < 0:
        return str(value)  # -1: no limit, in any unit
    if spec.metadata.get("unit") == BYTES:
        return format_size(value)
    if spec.metadata.get("unit") == MILLISECONDS:
        return format_duration_ms(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def shown(loaded: Loaded[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting's name, its formatted value with redacted secrets, and its source."""
    for spec in fields(loaded.values):
        value = without_secrets(show(spec, getattr(loaded.values, spec.name)))
        yield spec.name, value, loaded.sources[spec.name]


def sample_toml(kinds: tuple[type, ...], defaults: Mapping[str, Any] | None = None) -> str:
    """Return a configuration file with all settings, commented out, at their defaults, with their descriptions.

    `defaults` override those of the classes.
    """
    own = defaults or {}
    lines = ["# Every setting, at its default. Flags and QUIRE_… variables beat this file.", ""]
    seen: set[str] = set()
    for kind in kinds:
        for spec in fields(kind):
            if spec.name in seen:
                continue
            seen.add(spec.name)
            value = own.get(spec.name, "" if spec.default is MISSING else spec.default)
            default = show(spec, value)
            quoted = (
                default
                if isinstance(spec.default, bool | int)
                and default.isalnum()
                and not spec.metadata.get("unit")
                else f'"{default}"'
            )
            lines += [f"# {spec.metadata.get('prose', '')}", f"# {spec.name} = {quoted}", ""]
    return "\n".join(lines)
