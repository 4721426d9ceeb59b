"""Does a request of HTTP come from another site's page? A browser says so, and nobody else does.

Whoever can reach a port by his network, or shows a certificate by his browser, is let in without sending anything
himself: so a page that he opens somewhere else could have his browser send requests here. Browsers tell whose page a
request is from: by `Sec-Fetch-Site`, which they send to sites with TLS and to this machine, else by `Origin`. Requests
that change nothing are let pass, for their answers are not shown to other sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SAFE: Final = ("GET", "HEAD", "OPTIONS")
TOLD_BY: Final = ("Sec-Fetch-Site", "Origin")
REFUSAL: Final = "this request comes from another site's page, which may change nothing here"


def is_from_another_site(method: str, headers: Mapping[str, str]) -> bool:
    """Whether to refuse it."""
    if method in SAFE:
        return False
    site, origin = headers.get("Sec-Fetch-Site", ""), headers.get("Origin", "")
    if site:
        return site not in ("same-origin", "none")
    return bool(origin) and origin.partition("://")[2] != headers.get("Host", "")
