"""Profile of `quire login`: the brokers' addresses, and the files with credentials; it contains no secrets.

    ~/.config/quire/profile.toml (or in XDG_CONFIG_HOME)

A flag overrides the environment, which overrides the profile. The profile's credentials are sent only to the addresses
in the profile, not to another broker that a user names.
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
    """Read the profile; it is empty before a login. Raises `ConfigurationError` if the file is malformed."""
    file = place()
    try:
        found = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read {file}; run `quire login` again: {error}") from None
    if not found.keys() <= set(NAMES) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigurationError(f"{file} is not a profile of this version; run `quire login` again")
    return found


def save(profile: Mapping[str, str]) -> None:
    """Write the profile. Raises `ConfigurationError`."""
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
    """Delete the profile; return whether it existed."""
    try:
        place().unlink()
    except FileNotFoundError:
        return False
    return True
