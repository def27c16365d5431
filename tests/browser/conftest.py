import base64
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PROGRAMS = ("chromium", "chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
PATIENCE = 30


class Browser:
    """A Chromium with what a reader of a page does."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path) -> None:
        """Open a page of the project from disk, and wait until its figures are drawn."""
        self.driver.get(page.as_uri())
        self.driver.set_script_timeout(PATIENCE)
        failed = self.driver.execute_async_script(
            "const done = arguments[0]; window.drawn.then(() => done(null), e => done(String(e)));"
        )
        assert failed is None, failed

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements, in view or not."""
        found: list[str] = self.script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return found

    def wait(self, condition: Any, message: str, patience: float = PATIENCE) -> Any:
        return WebDriverWait(self.driver, patience, poll_frequency=0.1).until(
            lambda _: condition(), message
        )

    def hover(self, element: WebElement) -> None:
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver, duration=50).move_to_element(element).perform()

    def click(self, element: WebElement) -> None:
        self.hover(element)
        ActionChains(self.driver, duration=50).click().perform()

    def problems(self, *levels: str) -> list[str]:
        """Return what the console holds of errors, or of some levels, since the last look."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [e["message"] for e in entries if e["level"] in (levels or ("SEVERE",))]

    def size(self, width: int, height: int = 900) -> None:
        """Set the width of the page in CSS pixels; a window itself has a least width."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """Show the page as on "print" or on screen, to someone who prefers light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def shot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page as PNG."""
        made = self._command("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(made["data"]))

    def undrawn(self) -> Sequence[str]:
        """Return the ids of figures that show no mark of a size, or a mark at no number."""
        found: list[str] = self.script(
            """
            const marks = "g.role-mark path, g.role-mark rect, g.role-mark text";
            return [...document.querySelectorAll(".chart > div")].filter(place => {
              const drawn = [...place.querySelectorAll(marks)]
                .filter(m => m.getAttribute("opacity") !== "0");
              const sized = drawn.filter(m => { const box = m.getBoundingClientRect();
                return box.width > 0 || box.height > 0; });
              const wrong = drawn.some(m => /NaN|Infinity/.test(m.outerHTML));
              return !sized.length || wrong;
            }).map(place => place.id);
            """
        )
        return found

    def _command(self, name: str, values: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(name, values)


def _programs() -> list[str]:
    found = {name: shutil.which(name) for name in PROGRAMS}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        reason = f"{' and '.join(missing)} missing: apt-get install chromium chromium-driver"
        # Where nobody looks, a test that did not run must not pass for one that did.
        if "CI" in os.environ:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return [str(path) for path in found.values()]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program, service = _programs()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(service))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
