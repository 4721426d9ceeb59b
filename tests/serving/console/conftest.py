"""The console of a broker in this process, over HTTP, and a browser at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.serving.admin.conftest import Rest, rest
from tests.serving.conftest import in_thread
from tests.serving.console.browser import Page, chromium

__all__ = ["rest"]


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture
async def page(driver: Any, rest: Rest) -> AsyncIterator[Page]:
    """The console, which nobody has used yet."""
    made = Page(driver, rest.url)

    def forget() -> None:
        made.open("no-such-page")
        made.see("Topics", "◐")  # and log-in, where that is asked for
        driver.execute_script("sessionStorage.clear(); localStorage.clear()")
        driver.get_log("browser")

    await in_thread(forget)
    yield made
    complaints = await in_thread(made.complaints)
    await in_thread(lambda: driver.get("about:blank"))
    assert not complaints, "the browser complains"
