"""A headless Chromium for tests, and what it has to complain about."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver", "chromium.chromedriver")
PATIENCE_SECONDS = 15.0

_Value = TypeVar("_Value")


def is_there() -> bool:
    """Whether there are a browser and its driver: nothing is ever fetched."""
    return bool(_found(BROWSERS) and _found(DRIVERS))


class Chromium:
    """One tab."""

    def __init__(self) -> None:
        """Start the browser."""
        options = webdriver.ChromeOptions()
        options.binary_location = _found(BROWSERS)
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._driver = webdriver.Chrome(options, Service(_found(DRIVERS)))
        self.look(width=1280, height=1000)

    def look(self, *, width: int, height: int, dark: bool = False, scale: float = 1.0) -> None:
        """Be a screen of this size, in CSS pixels, of a user who likes it light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self._tell("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[scheme])

    def downloads(self, folder: Path) -> None:
        """Save what is downloaded in `folder`, without asking."""
        self._tell("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def open(self, url: str) -> None:
        """Go there."""
        self._driver.get(url)

    def find(self, id: str) -> WebElement:
        """Return the element of this id."""
        return self._driver.find_element(By.ID, id)

    def text(self, id: str) -> str:
        """Return what an element says; nothing if it is hidden."""
        return self.find(id).text

    def press(self, *keys: str) -> None:
        """Type where the focus is."""
        self._driver.switch_to.active_element.send_keys(*keys)

    @property
    def focus(self) -> str:
        """The id of what has the focus."""
        return self._driver.switch_to.active_element.get_attribute("id") or ""

    def run(self, script: str, *arguments: object) -> Any:
        """Return what the body of a function returns."""
        return self._driver.execute_script(script, *arguments)

    def wait(self, what: Callable[[], _Value], why: str, seconds: float = PATIENCE_SECONDS) -> _Value:
        """Wait until something is true, and return it."""
        return WebDriverWait(self._driver, seconds, 0.05).until(lambda _: what() or False, why)

    def complaints(self) -> list[str]:
        """Take the warnings and errors that the console has shown since the last time."""
        entries = self._driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Look at another tab for as long as the context lasts."""
        here = self._driver.current_window_handle
        self._driver.switch_to.new_window("tab")
        yield
        self._driver.close()
        self._driver.switch_to.window(here)

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG, below the fold too."""
        size = self._tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _tell(self, command: str, **arguments: object) -> Any:
        return self._driver.execute_cdp_cmd(command, arguments)

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the browser, and see that all of it is gone."""
        started = psutil.Process(self._driver.service.process.pid).children(recursive=True)
        self._driver.quit()
        _, alive = psutil.wait_procs(started, PATIENCE_SECONDS)
        assert alive == []


def _found(names: tuple[str, ...]) -> str:
    return next((path for name in names if (path := shutil.which(name))), "")
