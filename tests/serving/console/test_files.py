"""The console's files: which headers they have, what is in the package, and what they do not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.serving.console.pages import POLICY, static_files
from tests.serving.admin.conftest import Rest

STATIC = Path(__file__).parents[3] / "serving" / "console" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())


async def test_every_file_is_answered_and_may_run_nothing_but_the_others(rest: Rest) -> None:
    for path in ["", "/", *(f"/{file.relative_to(STATIC)}" for file in FILES)]:
        async with rest.session.get(f"{rest.url}/console{path}") as answer:
            assert answer.status == 200, path
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Encoding"] == "gzip"
            assert await answer.read() == (STATIC / (path.strip("/") or "index.html")).read_bytes()
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


@pytest.mark.parametrize("path", ["pages.py", "../pages.py", "%2e%2e/pages.py", "js", "js/", "js/none.js"])
async def test_nothing_else_is(rest: Rest, path: str) -> None:
    assert (await rest.get(f"/console/{path}")).status == 404


async def test_the_address_that_a_start_prints_leads_browsers_to_the_console(rest: Rest) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with rest.session.get(f"{rest.url}/", headers=browser, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, "/console")
    async with rest.session.get(f"{rest.url}/", headers=browser) as answer:
        assert answer.status == 200 and answer.content_type == "text/html"
    assert (await rest.get("/")).status == 404, "programs get JSON"


async def test_a_browser_that_has_a_file_gets_none_again(rest: Rest) -> None:
    async with rest.session.get(f"{rest.url}/console/console.css") as answer:
        tag = answer.headers["ETag"]
    headers = {"If-None-Match": tag}
    async with rest.session.get(f"{rest.url}/console/console.css", headers=headers) as answer:
        assert answer.status == 304 and not await answer.read()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_makes_no_html_of_texts_and_asks_nobody_else(file: Path) -> None:
    """The browser's policy forbids it as well; here it is said in which line."""
    makes = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    forbidden = rf"{makes}|javascript:|style=\"|\.cssText"
    for number, line in enumerate(file.read_text().splitlines(), 1):
        assert not re.search(forbidden, line), f"{file.name}:{number}: {line}"
        for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+", line):
            assert url == "http://www.w3.org", f"{file.name}:{number} names {url}"


def test_what_is_imported_is_there() -> None:
    for file in FILES:
        if file.suffix == ".js":
            for name in re.findall(r'^(?:import|export).*? from "(.+?)";', file.read_text(), re.M):
                assert (file.parent / name).resolve() in FILES, f"{file.name} imports {name}"


def test_all_of_it_is_small() -> None:
    """With the first page's data, the first page has 200 kB at most (`test_first_page`)."""
    assert sum(len(file.zipped) for file in set(static_files().values())) < 100_000
