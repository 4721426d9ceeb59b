"""`/admin/v2/brokers/configuration`: settings that can be changed while brokers run (`operations/dynamic_settings`).

Names and values are those of the configuration file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Final
from urllib.parse import urlsplit

from quire.metadata import paths
from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin.route import Route, path
from quire.serving.admin.values import OutOfRange
from quire.serving.broker import Broker

CONFIGURATION: Final = "/admin/v2/brokers/configuration"
VALUE_CHARS_MAX: Final = 100


def routes(broker: Broker) -> Sequence[Route]:
    settings, may = broker.admin.settings, Action.SUPERUSER

    def running() -> dict[str, str]:
        """Return the values in effect on this broker."""
        assert is_dataclass(broker.services.settings)
        values = {**asdict(broker.services.settings), **settings.current()}
        return {name: str(value) for name, value in values.items()}

    async def change(name: str, value: str) -> None:
        """Change a setting on all brokers, with precedence over their flags, environment and files.

        Other brokers apply it a moment later. The name must be in the list of this path.
        """
        if len(value) > VALUE_CHARS_MAX:
            raise OutOfRange(f"the value of {name} has more than {VALUE_CHARS_MAX} characters")
        try:
            await settings.set(name, value)
        except ConfigurationError as error:
            raise OutOfRange(str(error)) from error

    def known(name: str) -> str:
        if name not in settings.names():
            raise OutOfRange(
                f"{name[:100]!r} cannot be changed while a broker runs: change the setting and restart the broker; "
                f"settings that can be changed are {', '.join(settings.names())}"
            )
        return name

    def internal() -> dict[str, str | None]:
        """Return the places of the metadata; one store has the records of topics, ledgers and policies."""
        return _internal(broker.admin.metadata_url)

    name = path("name", parse=known)
    return (
        Route("GET", CONFIGURATION, settings.names, may=may),
        Route("GET", f"{CONFIGURATION}/", settings.names, may=may),
        Route("GET", f"{CONFIGURATION}/values", settings.changed, may=may),
        Route("GET", f"{CONFIGURATION}/runtime", running, may=may),
        Route("POST", f"{CONFIGURATION}/{{name}}/{{value}}", change, name, path("value"), may=may),
        Route("DELETE", f"{CONFIGURATION}/{{name}}", settings.unset, name, may=may),
        Route("GET", "/admin/v2/brokers/internal-configuration", internal, may=may),
    )


def _internal(url: str) -> dict[str, str | None]:
    parts = urlsplit(url)
    is_zookeeper = parts.scheme.startswith("zk")
    servers = f"{parts.netloc}{parts.path}" if is_zookeeper else ""
    chroot = parts.path.rstrip("/") if is_zookeeper else ""
    return {
        "zookeeperServers": servers,
        "configurationStoreServers": servers,
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": url,
        "ledgersRootPath": f"{chroot}{paths.LEDGERS}",
        "bookkeeperMetadataServiceUri": url,
        "stateStorageServiceUrl": None,
    }
