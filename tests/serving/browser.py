"""Chromium for tests, told what to do over a pair of pipes: nothing to install beside it, and no port open.

What is done is what a reader does: clicks at a place, keys, files given to a field. What is seen is asked of
the page itself. Whatever the page reports as an error, or asks of another machine, is kept.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
FLAGS = (
    "--headless",
    "--no-sandbox",  # containers run tests as root, and have no other
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
START = """\
import fcntl, os, sys
# Chromium reads from 3 and writes to 4. What is there now must not be overwritten before it is copied.
told, tells = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(told, 3)
os.dup2(tells, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "ArrowDown": 40,
    "ArrowUp": 38,
}
PATIENCE = 20.0
"""Seconds: far more than anything takes, on a machine that does other things as well."""


def find_program(names: tuple[str, ...], variable: str) -> str | None:
    """A program by the variable that names it, or the first of its usual names that is there."""
    named = os.environ.get(variable)
    return named or next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """A browser with a profile of its own."""

    def __init__(self, program: str, profile: Path) -> None:
        told, self._commands = os.pipe()
        self._events, tells = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={profile}", "about:blank"]
        arguments = [sys.executable, "-c", START, str(told), str(tells), program, *flags]
        self._process = subprocess.Popen(
            arguments, pass_fds=(told, tells), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(told)
        os.close(tells)
        self._number = 0
        self._rest = b""
        self._waiting: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """What a command answers; events that come in the meantime are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(PATIENCE)
            assert answer is not None, f"the browser did not answer {method}"
            if answer.get("id") != self._number:
                self._waiting.append(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            return answer["result"]

    def events(self) -> list[dict[str, Any]]:
        """The events that have come since the last time."""
        while (event := self._read(0.0)) is not None:
            self._waiting.append(event)
        come, self._waiting = self._waiting, []
        return come

    def _read(self, seconds: float) -> dict[str, Any] | None:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._events], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            read = os.read(self._events, 1 << 16)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._events)


class Tab:
    """A page as a reader uses it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.problems: list[str] = []
        """Errors that the page reported: thrown, or against its content policy."""
        self.hosts: set[str] = set()
        """The machines that the page asked anything of."""
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        # Of several pages each takes itself for the one in front.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def allow(self, *permissions: str) -> None:
        """What a reader would be asked for."""
        self._browser.call("Browser.grantPermissions", permissions=permissions)

    def look(self, width: int = 1280, height: int = 900, dark: bool = False, still: bool = True) -> None:
        """The window's size, the reader's choice of light or dark, and of movement."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, address: str) -> None:
        # Another fragment alone would not load the page again.
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The value of an expression once it is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                value = self.ask(expression)
            except AssertionError:
                # The page may just be changing for another one.
                value = None
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not so after {PATIENCE:.0f} s: {expression}\n{self.text('body')[:2000]}")

    def text(self, selector: str) -> str:
        """What a reader sees of an element, or of none."""
        return self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def texts(self, selector: str) -> list[str]:
        return self.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText)")

    def click(self, selector: str, text: str = "") -> None:
        """A click in the middle of an element, the first that has this text, after scrolling to it."""
        matching = f"""[...document.querySelectorAll({json.dumps(selector)})]
            .find((one) => one.innerText.includes({json.dumps(text)}))"""
        self.wait(f"{matching} !== undefined")
        place = self.ask(
            f"""(() => {{
            const found = {matching};
            found.scrollIntoView({{ block: "center" }});
            const box = found.getClientRects()[0];
            return [box.left + box.width / 2, box.top + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def press(self, key: str, ctrl: bool = False) -> None:
        common = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 2 if ctrl else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, selector: str, text: str) -> None:
        """Replaces what is in a field, as typing does."""
        self.ask(f"document.querySelector({json.dumps(selector)}).focus()")
        self.ask(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def give_file(self, selector: str, file: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node)

    def picture(self, file: Path, whole: bool = False) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def settle(self) -> None:
        """Takes note of what the page has reported so far."""
        for event in self._browser.events():
            if event.get("sessionId") != self._session:
                continue
            details = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    self.problems.append(json.dumps(details["exceptionDetails"])[:600])
                case "Log.entryAdded" if details["entry"]["level"] == "error":
                    self.problems.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")
                case "Network.requestWillBeSent":
                    address = urlsplit(details["request"]["url"])
                    if address.scheme not in ("data", "blob", "about"):
                        self.hosts.add(f"{address.hostname}:{address.port}")
