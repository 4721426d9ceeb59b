"""Security objects of one process, created from its security file. Brokers and gateways use them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.runtime.clock import Clock
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError
from quire.runtime.installation import pip_install
from quire.security.audit import AuditLog
from quire.security.authentication import Authentication, make_authentication
from quire.security.authorization import Authorization
from quire.security.configuration import Configuration


@dataclass(frozen=True)
class Security:
    configuration: Configuration
    authentication: Authentication | None
    """Authentication providers; None if authentication is disabled and all clients may do everything."""
    authorization: Authorization
    audit: AuditLog
    credentials: Credentials
    """Credentials of this process as a client."""

    async def stop(self) -> None:
        if self.authentication is not None:
            await self.authentication.stop()
        self.audit.close()


def make_security(configuration: Configuration, clock: Clock) -> Security:
    """Create the objects for a process. Raises `ConfigurationError` for an unusable key or file."""
    authentication = None
    if configuration.authentication is not None:
        try:
            authentication = make_authentication(configuration.authentication, clock)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"authentication needs the package {error.name}: {pip_install('security')}"
            ) from None
    rules = configuration.authorization
    authorization = Authorization(
        rules.superusers, rules.proxies, is_enabled=rules.enabled and authentication is not None
    )
    own = configuration.client
    credentials = Credentials(own.token, own.token_file, own.user, own.password_file)
    credentials.headers()  # raises now if a file is unreadable
    audit = AuditLog(configuration.audit, clock)
    return Security(configuration, authentication, authorization, audit, credentials)
