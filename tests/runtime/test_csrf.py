"""Whose page a request is from, as browsers tell it."""

from __future__ import annotations

import pytest

from quire.runtime.csrf import is_cross_site


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("POST", {}, False),  # no browser
        (
            "POST",
            {"Sec-Fetch-Site": "same-origin", "Origin": "https://a"},
            False,
        ),  # whatever Host a proxy has made
        ("POST", {"Sec-Fetch-Site": "none"}, False),  # typed by a person
        ("POST", {"Sec-Fetch-Site": "same-site"}, True),  # another port, or another name of the same site
        ("DELETE", {"Sec-Fetch-Site": "cross-site"}, True),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, False),  # a link; the answer is not shown to who made it
        ("PUT", {"Origin": "http://a:8080", "Host": "a:8080"}, False),
        ("PUT", {"Origin": "http://a:8081", "Host": "a:8080"}, True),
        ("PUT", {"Origin": "null", "Host": "a:8080"}, True),
    ],
)
def test_only_pages_of_other_sites_are_refused(method: str, headers: dict[str, str], expected: bool) -> None:
    assert is_cross_site(method, headers) is expected
