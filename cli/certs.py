"""`quire certs`: a certificate authority for tests, and for clusters without another authority."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from quire.cli.noun import json_option
from quire.cli.output import Answer
from quire.runtime.errors import ConfigurationError
from quire.runtime.installation import pip_install

SECURITY_FILE: Final = "security.toml"
_SECURITY: Final = """\
[tls]
certificate = "{name}.pem"
key = "{name}-key.pem"
authority = "authority.pem"
client_certificates = "optional"
"""

_directory = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
_days = click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=365,
    show_default=True,
    help="Validity of the certificate in days.",
)


@click.group("certs")
def command() -> None:
    """Create a certificate authority and sign certificates. Processes reload renewed certificates automatically.

    \b
    Examples:
      quire certs make certs --hosts localhost,127.0.0.1
      quire standalone --security certs/security.toml
      quire produce hello --service-url pulsar+ssl://localhost:6651 --tls-trust-certs certs/authority.pem
      quire certs user certs alice
    """


@command.command("make")
@_directory
@click.option(
    "--hosts",
    default="localhost,127.0.0.1",
    show_default=True,
    help="Host names and addresses for the certificate.",
)
@click.option(
    "--name", default="node", show_default=True, help="Name of the files NAME.pem and NAME-key.pem."
)
@_days
@json_option
def make(directory: Path, hosts: str, name: str, days: int, as_json: bool) -> None:
    """Sign a certificate for brokers, bookies and gateways on HOSTS, by the authority in DIRECTORY.

    The authority is created if missing. An initial security file is written to DIRECTORY, too. Only signing needs the
    authority's key; servers do not.

    \b
    Example:
      quire certs make certs --hosts localhost,127.0.0.1
    """
    certs = _library()
    is_there = (directory / f"{certs.AUTHORITY}.pem").exists()
    authority = certs.Authority.load(directory) if is_there else certs.Authority.make(directory)
    named = [host.strip() for host in hosts.split(",") if host.strip()]
    certificate, key = authority.sign_process(name, named, days)
    security = directory / SECURITY_FILE
    if not security.exists():
        security.write_text(_SECURITY.format(name=name))
    found = {
        "authority": str(directory / f"{certs.AUTHORITY}.pem"),
        "certificate": str(certificate),
        "key": str(key),
        "security": str(security),
    }
    Answer(found, found).say(as_json)


@command.command("user")
@_directory
@click.argument("role")
@_days
@json_option
def user(directory: Path, role: str, days: int, as_json: bool) -> None:
    """Sign a certificate for clients with the role ROLE. Bookies refuse it, and servers cannot use it.

    \b
    Example:
      quire certs user certs alice
    """
    certificate, key = _library().Authority.load(directory).sign_user(role, days)
    found = {"certificate": str(certificate), "key": str(key)}
    Answer(found, found).say(as_json)


def _library() -> Any:
    """Import the library late: processes without a security file do not need it."""
    try:
        from quire.security import certs
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"certificates need the package {error.name}: {pip_install('security')}"
        ) from None
    return certs
