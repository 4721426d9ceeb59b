"""Parsing of topic names as users and programs write them: full, or in one of two short forms.

    orders                                persistent://public/default/orders
    tenant/namespace/orders               persistent://tenant/namespace/orders
    DOMAIN://tenant/namespace/orders      itself

This module imports little, because commands that only send a request to a broker over HTTP must start fast.
"""

from __future__ import annotations

import re
from sys import intern
from typing import Final
from urllib.parse import quote

from quire.runtime.errors import ConfigurationError

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def has_control(text: str) -> bool:
    """Return whether a name contains control characters, which could break a line or control a terminal."""
    return _CONTROL.search(text) is not None


def split(topic: str) -> tuple[str, str, str, str]:
    """Split a name into domain, tenant, namespace and local name (may contain slashes). Raises `ConfigurationError`."""
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = "persistent", topic if "/" in topic else f"public/default/{topic}"
    parts = rest.split("/", 2)
    if len(parts) != 3 or not all(parts) or domain not in ("persistent", "non-persistent"):
        raise ConfigurationError(f"{topic!r} is not a topic name, such as persistent://public/default/orders")
    if has_control(topic):
        raise ConfigurationError(f"the topic name {topic!r} contains control characters; use others")
    tenant, namespace, local = parts
    # A broker has a hundred thousand names in few namespaces, so names share the strings of the parts that are equal.
    return intern(domain), intern(tenant), intern(namespace), local


def path(topic: str) -> str:
    """Return the topic's REST path, `persistent/tenant/namespace/name`, escaped. Raises `ConfigurationError`."""
    return escaped(*split(topic))


def escaped(*parts: str) -> str:
    """Escape names as parts of a REST path, and join them with slashes."""
    return "/".join(quote(part, safe="") for part in parts)


def escaped_subscription(name: str) -> str:
    """Return a subscription's name as a path segment; brokers decode it twice, the second time as a form value."""
    return quote(name.replace("%", "%25").replace("+", "%2B"), safe="")
