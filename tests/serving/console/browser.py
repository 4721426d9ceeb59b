"""A person at the console: opens pages, reads, clicks and types in a real Chromium without a window.

Its calls block, so they are made in threads: `await in_thread(lambda: work(page))`. Whatever the browser complains of,
a script that fails or something that the page's policy forbids, fails the test at its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SEE_S = 10.0
NAME = "topic/persistent/public/default/orders"
EVIL = '<script>document.title="taken"</script><img src=x onerror="document.title=1">'
"""The page of a topic, and a text that a careless page would run."""

CHROMIUM, DRIVER = "chromium", "chromedriver"


class Page:
    """One tab at the console of the broker at `url`."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        self.expected: tuple[str, ...] = ()
        """Parts of complaints that belong to the test, such as of an answer that it is about."""

    def open(self, place: str) -> None:
        """A page anew, as by a link from elsewhere."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/console/#/{place}")

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

    def see(self, *texts: str, gone: bool = False) -> None:
        """Wait until the page shows all of `texts` (none of them, with `gone`)."""
        from selenium.webdriver.support.ui import WebDriverWait

        def is_so(_: Any) -> bool:
            shown = self.text()
            return all((text in shown) is not gone for text in texts)

        try:
            WebDriverWait(self.driver, SEE_S, 0.05).until(is_so)
        except Exception as error:
            raise AssertionError(f"{'still' if gone else 'never'} {texts} in:\n{self.text()}") from error

    def click(self, text: str, inside: str = "body") -> None:
        """A button, a link or a summary with just this text, the first that can be clicked."""
        self._press(
            f"//*[self::button or self::a or self::summary][normalize-space()={quoted(text)}]", inside
        )

    def click_in_row(self, row: str, text: str) -> None:
        """In the row of a table that says `row`; in the panel that does, where no row does."""
        says = f"[contains(normalize-space(), {quoted(row)})]"
        button = f"//button[normalize-space()={quoted(text)}]"
        self._press(f"//tr{says}{button} | //section{says}[not(.//tr{says}{button})]{button}")

    def _press(self, xpath: str, inside: str = "body") -> None:
        """Click in the middle of the window, where no bar hides what is clicked."""
        found = self._find(xpath, inside)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def fill(self, label: str, value: str) -> None:
        """What a label, or a description for those who do not see, calls so."""
        from selenium.webdriver.support.ui import Select

        field = self._find(
            f"//label[contains(normalize-space(), {quoted(label)})]//*[self::input or self::select or self::textarea]"
            f" | //*[@aria-label={quoted(label)}]"
        )
        if field.tag_name == "select":
            Select(field).select_by_visible_text(value)
        elif field.get_attribute("type") == "checkbox":
            if field.is_selected() != (value == "yes"):
                field.click()
        else:
            field.clear()
            field.send_keys(value)

    def answer(self, button: str, **fields: str) -> None:
        """Fill in the open dialog (`_` in names of fields for spaces) and press its button; it closes."""
        for label, value in fields.items():
            self.fill(label.replace("_", " "), value)
        self.click(button, "dialog")
        self.wait_for("!document.querySelector('dialog')", "the dialog stays open")

    def wait_for(self, script: str, problem: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            WebDriverWait(self.driver, SEE_S, 0.05).until(
                lambda driver: driver.execute_script(f"return {script}")
            )
        except Exception as error:
            raise AssertionError(f"{problem}:\n{self.text()}") from error

    def wait(self, is_so: Callable[[], bool], problem: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, SEE_S, 0.05).until(lambda _: is_so(), problem)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def _find(self, xpath: str, inside: str = "body") -> Any:
        from selenium.webdriver.common.by import By
        from selenium.webdriver.support.ui import WebDriverWait

        def shown(driver: Any) -> Any:
            found = driver.find_elements(By.XPATH, xpath.replace("//", f"//{inside}//", 1))
            return next((one for one in found if one.is_displayed() and one.is_enabled()), None)

        try:
            return WebDriverWait(self.driver, SEE_S, 0.05).until(shown)
        except Exception as error:
            raise AssertionError(f"there is no {xpath} in:\n{self.text()}") from error

    def faint(self) -> list[str]:
        """Texts of which the colour has less contrast to its background than WCAG's AA asks for large ones (3:1)."""
        return [str(one) for one in self.driver.execute_script(FAINT)]

    def complaints(self) -> list[str]:
        """What the browser's console says since this was asked last."""
        lines = [str(one["message"]) for one in self.driver.get_log("browser")]
        return [line for line in lines if not any(part in line for part in self.expected)]


FAINT = """
const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
  .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((all, one, at) => all + one * [0.2126, 0.7152, 0.0722][at], 0);
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
function behind(node) {
  for (let one = node; one; one = one.parentElement) {
    const colour = numbers(getComputedStyle(one).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
}
const faint = [];
for (const node of document.querySelectorAll("main *, header *")) {
  const isText = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
  if (!isText || node.closest(":disabled, svg, option") || !node.checkVisibility()) continue;
  const [front, back] = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
  if ((Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05) < 3) faint.push(node.textContent.slice(0, 60));
}
return faint;
"""


def quoted(text: str) -> str:
    """A text in an XPath expression."""
    if '"' not in text:
        return f'"{text}"'
    return "concat(" + ", '\"', ".join(f'"{part}"' for part in text.split('"')) + ")"


@contextmanager
def chromium() -> Iterator[Any]:
    """A driver. Skips the test where selenium, Chromium or its driver is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = shutil.which(CHROMIUM), shutil.which(DRIVER)
    if browser is None or driver is None:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    # Containers give a browser neither a sandbox of its own nor much shared memory.
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "window-size=1280,1400",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield made
    finally:
        made.quit()
