"""`quire login`: stores the brokers' addresses and the paths of credential files, after a broker has accepted them."""

from __future__ import annotations

import os

import click

from quire.cli import profile
from quire.cli.client_command import DEFAULT_URL as SERVICE_URL
from quire.cli.connection_options import login_options
from quire.cli.output import done
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import DEFAULT_URL, Admin
from quire.runtime.tls import ClientTls

TIMEOUT_S = 10.0


@click.command("login")
@click.option(
    "--admin-url",
    default=lambda: profile.default("QUIRE_ADMIN_URL", "admin_url"),
    show_default=False,
    metavar="URL",
    help=f"HTTP address of a broker (environment: QUIRE_ADMIN_URL).  [{DEFAULT_URL}]",
)
@click.option(
    "--service-url",
    default=lambda: profile.default("QUIRE_SERVICE_URL", "service_url"),
    show_default=False,
    metavar="URL",
    help=f"Address of the brokers (environment: QUIRE_SERVICE_URL).  [{SERVICE_URL}]",
)
@click.option("--forget", is_flag=True, help="Delete the stored addresses and paths.")
@profile.new_context_option
@login_options
def command(
    admin_url: str | None,
    service_url: str | None,
    forget: bool,
    tls: ClientTls,
    credentials: Credentials,
) -> None:
    """Verify credentials at a broker, and use them as the default for later commands.

    Remembered are the two addresses and the names of files, in ~/.config/quire/profile.toml; no token and no password.
    With --context, several clusters are remembered, each under its name; `quire contexts` lists them. A later login of
    the same name keeps the addresses that are not given.

    \b
    Examples:
      quire login --admin-url https://quire.example:8443 --service-url pulsar+ssl://quire.example:6651 \\
                  --tls-trust-certs authority.pem --token-file app.token
      quire login --context prod --admin-url https://quire.example:8443 --service-url pulsar+ssl://quire.example:6651
      quire login --forget
    """
    if forget:
        done("forgotten" if profile.forget() else "there was nothing to forget").say(False)
        return
    if credentials.token:
        raise ConfigurationError(
            "login does not save a token from QUIRE_TOKEN: write it to a file, and pass --token-file"
        )
    admin_url, service_url = _both(admin_url, service_url)
    Admin(admin_url, TIMEOUT_S, tls=tls, credentials=credentials).get("/admin/v2/clusters")
    files = {
        "token_file": credentials.token_file,
        "password_file": credentials.password_file,
        "tls_trust_certs": tls.authority,
        "tls_certificate": tls.certificate,
        "tls_key": tls.key,
    }
    found = {name: os.path.abspath(file) for name, file in files.items() if file}
    profile.save({"admin_url": admin_url, "service_url": service_url, "user": credentials.user, **found})
    done(f"logged in at {admin_url}; {_remembered()}").say(False)


def _both(admin_url: str | None, service_url: str | None) -> tuple[str, str]:
    """Return the addresses, by default those of this machine. Raises `ConfigurationError` if only one is given.

    Otherwise the credentials of one cluster would be sent to a server on this machine.
    """
    if admin_url and service_url:
        return admin_url, service_url
    if admin_url or service_url:
        missing = "--service-url" if admin_url else "--admin-url"
        raise ConfigurationError(f"give {missing}, too: both addresses of the cluster are stored")
    return DEFAULT_URL, SERVICE_URL


def _remembered() -> str:
    """Return where the login was stored, and how commands use it if it is not the current context's."""
    name, current = profile.chosen(), profile.read().current
    where = f"remembered in {profile.place()}"
    if name == current:
        return where if name == profile.DEFAULT else f"{where} as context {name}"
    return f"{where} as context {name}; use it with `quire --context {name} …`, or always: `quire contexts use {name}`"
