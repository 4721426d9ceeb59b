"""What `quire login` remembers: where the brokers are, and which files have the credentials; no secret itself.

    ~/.config/quire/profile.toml (or in XDG_CONFIG_HOME)

A flag beats the environment, which beats this. Its credentials go to its own addresses alone: who names another broker
does not mean to show them there.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from quire.runtime.errors import ConfigurationError

URLS: Final = ("admin_url", "service_url")
FILES: Final = ("token_file", "password_file", "tls_trust_certs", "tls_certificate", "tls_key")
NAMES: Final = (*URLS, "user", *FILES)


def place() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "quire" / "profile.toml"


def load() -> Mapping[str, str]:
    """Empty when nobody has logged in. Raises `ConfigurationError` for a file that cannot be understood."""
    file = place()
    try:
        found = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read {file}, log in again: {error}") from None
    if not found.keys() <= set(NAMES) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigurationError(f"{file} is no profile of this version, log in again")
    return found


def save(profile: Mapping[str, str]) -> None:
    """Raises `ConfigurationError`."""
    file = place()
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in profile.items() if value]
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_text("".join(lines))
        beside.chmod(0o600)
        beside.replace(file)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None


def forget() -> bool:
    """Whether there was one."""
    try:
        place().unlink()
    except FileNotFoundError:
        return False
    return True
