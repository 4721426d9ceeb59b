"""First steps with a new server: the commands that publish and read a message, and the console's address.

The commands contain the options that the server's security file requires. Names in capitals stand for files that the
security file does not name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from quire.runtime.settings import format_address
from quire.security.configuration import AuthenticationConfiguration, Configuration

if TYPE_CHECKING:
    from quire.serving.ownership.port import Addresses

CONSOLE: Final = "/console"
EVERYWHERE: Final = ("0.0.0.0", "::")


def commands(addresses: Addresses, security: Configuration) -> tuple[str, str]:
    """Return the command that publishes a first message, and the one that reads it."""
    options = " ".join(("", *_options(addresses, security)))
    return (
        f"echo 'Hello, Quire' | {_quire()} produce hello{options}",
        f"{_quire()} consume hello --subscription first --from earliest --count 1{options}",
    )


def console_url(addresses: Addresses) -> str:
    """Return the address of the console in a browser on this machine."""
    return console_at(addresses.http_url or addresses.http_url_tls)


def console_at(http_url: str) -> str:
    """Return the console's address at a REST address, which may be that of all interfaces."""
    url = urlsplit(http_url)
    host = url.hostname or ""
    where = format_address("localhost" if host in EVERYWHERE else host, url.port or 0)
    return f"{url.scheme}://{where}{CONSOLE}"


def _quire() -> str:
    """Return the command of this program as it was called."""
    called = sys.argv[0]
    if called.endswith("__main__.py"):
        return f"{sys.executable} -m quire"
    return called if "/" in called else "quire"


def _options(addresses: Addresses, security: Configuration) -> list[str]:
    url = addresses.service_url or addresses.service_url_tls
    is_usual = bool(addresses.service_url) and url.endswith(":6650")
    options = [] if is_usual else [f"--service-url {url}"]
    tls, has_certificate = security.tls, False
    if tls is not None and not addresses.service_url:
        if tls.authority:
            options.append(f"--tls-trust-certs {_near(tls.authority)}")
        has_certificate = tls.client_certificates == "required"
    return options + _credentials(security.authentication, has_certificate)


def _credentials(authentication: AuthenticationConfiguration | None, has_certificate: bool) -> list[str]:
    certificate = ["--tls-certificate CERTIFICATE --tls-key KEY"]
    found = certificate if has_certificate else []
    if authentication is None:
        return found
    if authentication.token is not None or authentication.oidc:
        return [*found, "--token-file TOKEN_FILE"]
    if authentication.basic is not None:
        return [*found, "--user USER --password-file PASSWORD_FILE"]
    return certificate if authentication.certificate is not None else found


def _near(file: str) -> str:
    """Return a path relative to the current directory if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
