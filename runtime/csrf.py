"""CSRF: reject changes that another site's page requests through a user's browser.

A browser presents the user's certificate with such a request, and where no credentials are required, it may reach ports
that the other site cannot. It also names the page's site: in `Sec-Fetch-Site` if it uses TLS or the server is on its
own machine, else in `Origin`. Requests that change nothing pass, because a browser hides their responses from other
sites' pages; a GET that creates topics is refused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

SAFE: Final = ("GET", "HEAD", "OPTIONS")
CREATES: Final = "checkAllowAutoCreation"
"""Query parameter by which Pulsar's clients have a GET create a topic."""

ORIGIN_HEADERS: Final = ("Sec-Fetch-Site", "Origin")
REFUSAL: Final = "this request comes from another site's page, which may change nothing here"


def is_cross_site(method: str, headers: Mapping[str, str], query: Container[str] = ()) -> bool:
    """Return whether a request must be refused; `query` contains the names of its query parameters."""
    if method in SAFE and CREATES not in query:
        return False
    site, origin = headers.get("Sec-Fetch-Site", ""), headers.get("Origin", "")
    if site:
        return site not in ("same-origin", "none")
    return bool(origin) and origin.partition("://")[2] != headers.get("Host", "")
