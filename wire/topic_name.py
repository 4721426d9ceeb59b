"""A topic's name as people and programs give it to a client: full, or one of the two short forms.

    orders                                persistent://public/default/orders
    tenant/namespace/orders               persistent://tenant/namespace/orders
    DOMAIN://tenant/namespace/orders      itself

It imports little: commands that only ask a broker over HTTP need it, and are to start at once.
"""

from __future__ import annotations

import re
from sys import intern
from typing import Final
from urllib.parse import quote

from quire.runtime.errors import ConfigurationError

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def has_control(text: str) -> bool:
    """Whether a name could break a line or steer a terminal wherever it is printed."""
    return _CONTROL.search(text) is not None


def split(topic: str) -> tuple[str, str, str, str]:
    """Domain, tenant, namespace and local name; the last may contain slashes. Raises `ConfigurationError`."""
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = "persistent", topic if "/" in topic else f"public/default/{topic}"
    parts = rest.split("/", 2)
    if len(parts) != 3 or not all(parts) or domain not in ("persistent", "non-persistent"):
        raise ConfigurationError(f"{topic!r} is not a topic, such as persistent://public/default/orders")
    if has_control(topic):
        raise ConfigurationError(f"the topic name {topic!r} has control characters; use others")
    tenant, namespace, local = parts
    # A broker holds a hundred thousand names, of a few namespaces.
    return intern(domain), intern(tenant), intern(namespace), local


def path(topic: str) -> str:
    """The topic in REST: `persistent/tenant/namespace/name`, each part escaped. Raises `ConfigurationError`."""
    return escaped(*split(topic))


def escaped(*parts: str) -> str:
    """Names as parts of a path in REST, slashes between them."""
    return "/".join(quote(part, safe="") for part in parts)
