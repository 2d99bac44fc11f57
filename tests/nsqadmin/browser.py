"""A real Chromium, controlled through Debian's chromedriver with the WebDriver protocol.

Waiting polls the page, because it changes at any time.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE = 30.0
_ATTEMPTS = 20
ARROW_LEFT = "\ue012"
ENTER = "\ue007"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_STARTED = re.compile(r"started successfully on port (\d+)")


class Element:
    def __init__(self, browser: "Browser", reference: str) -> None:
        self._browser = browser
        self._reference = reference
        self._path = f"element/{reference}"

    @property
    def text(self) -> str:
        return str(self._browser.call("GET", f"{self._path}/text"))

    def click(self) -> None:
        self._browser.call("POST", f"{self._path}/click", {})

    def hover(self) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {_ELEMENT: self._reference}}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._browser.call("POST", "actions", {"actions": [pointer]})

    def type(self, text: str) -> None:
        self._browser.call("POST", f"{self._path}/value", {"text": text})


def _start_driver() -> tuple["subprocess.Popen[str]", str]:
    """Start chromedriver on a port that the system chooses; returns it and the port, which it prints.

    It takes a port for IPv4 and then wants the same one for IPv6, which another process may have. Then it ends.
    """
    for _ in range(_ATTEMPTS):
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        for line in driver.stdout:
            if found := _STARTED.search(line):
                return driver, found[1]
        driver.communicate()
    raise AssertionError(f"chromedriver found no port, {_ATTEMPTS} times")


class Browser:
    """A headless window, 1280 by 900 unless resized."""

    def __init__(self, profile: Path) -> None:
        self._driver, port = _start_driver()
        self._url = f"http://127.0.0.1:{port}/session"
        arguments = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"),
            *("--no-proxy-server", "--hide-scrollbars", f"--user-data-dir={profile}"),
        ]
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/{answer['sessionId']}"

    def close(self) -> None:
        self.call("DELETE", "")
        self._driver.terminate()
        self._driver.wait(PATIENCE)
        assert self._driver.stdout is not None
        self._driver.stdout.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self._url}/{path}".rstrip("/")
        try:
            with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=60) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            with error:
                raise LookupError(json.load(error)["value"]["message"]) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    # --- Actions of a visitor -----------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        self.call("POST", "url", {"url": url})

    def find(self, selector: str, text: str = "") -> Element:
        """Wait for an element of a CSS selector that contains the text."""
        element: Element = until(lambda: self._found(selector, text), f"{selector} {text!r}")
        return element

    def click(self, selector: str, text: str = "") -> None:
        """Wait for an element and click it. An element that was replaced meanwhile is searched again."""

        def clicked() -> bool:
            element = self._found(selector, text)
            if element is not None:
                element.click()
            return element is not None

        until(clicked, f"a click on {selector} {text!r}")

    def sees(self, text: str, selector: str = "main", *, reloading: bool = False) -> None:
        """Wait until the text is shown; with `reloading`, on a page that does not refresh itself.

        A daemon that is slow for a moment is left out of a page.
        """

        def seen() -> bool:
            is_seen = text in self.text_of(selector)
            if reloading and not is_seen:
                self.call("POST", "refresh", {})
            return is_seen

        until(seen, f"{text!r} in {selector}")

    def sees_no_more(self, text: str, selector: str = "main") -> None:
        until(lambda: text not in self.text_of(selector), f"{selector} without {text!r}")

    # --- State of the page --------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return str(self.run("return location.pathname"))

    def text_of(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def call_async(self, script: str, *arguments: Any) -> Any:
        """Run a script that calls its last argument with the result."""
        return self.call("POST", "execute/async", {"script": script, "args": list(arguments)})

    def start_over(self) -> None:
        """The window of a new visitor."""
        self.open("about:blank")  # the page before goes on asking its nsqadmin, which may have ended
        self.scripts(on=True)
        self.prefer("light")
        self.resize(1280, 900)
        self.devtools("Network.clearBrowserCookies")

    def resize(self, width: int, height: int) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def scripts(self, *, on: bool) -> None:
        self.devtools("Emulation.setScriptExecutionDisabled", value=not on)

    def complaints(self) -> list[str]:
        """Console messages since the last call."""
        return [entry["message"] for entry in self.call("POST", "se/log", {"type": "browser"})]

    def _found(self, selector: str, text: str) -> Element | None:
        found = self.call("POST", "elements", {"using": "css selector", "value": selector})
        elements = [Element(self, each[_ELEMENT]) for each in found]
        return next((element for element in elements if text in element.text), None)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if answer := condition():
                return answer
        except LookupError:
            pass  # the element was replaced meanwhile
        assert time.monotonic() < deadline, f"in vain waited for {what}"
        time.sleep(0.02)
