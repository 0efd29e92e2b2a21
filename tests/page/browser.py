"""What headless Chromium makes of a page, for the tests of the page of a run and of that of all jobs.

One Chromium serves all tests of a process of pytest. It is spoken to through a pair of pipes, in the DevTools protocol.
"""

import html
import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.cluster.packages import CHROMIUM, require

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--window-size=1000,800",
)
_VIRTUAL_MILLISECONDS = 5000
_SAID = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")

Told = dict[str, Any]


class Browser:
    """A headless Chromium with a profile of its own."""

    def __init__(self, folder: Path) -> None:
        """Start it; pages and profile lie in the folder."""
        self._folder, self._numbers = folder, itertools.count(1)
        from_us, self._to_it = os.pipe()
        from_it, to_us = os.pipe()
        # It reads commands from its descriptor 3 and writes to 4, which another file may have here: so by a shell.
        redirected = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
        command = ["bash", "-c", redirected, CHROMIUM.shown_by, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
        self._process = subprocess.Popen(
            command, pass_fds=(from_us, to_us), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(from_us)
        os.close(to_us)
        self._from_it = os.fdopen(from_it, "rb")
        self._rest = b""

    def __enter__(self) -> Self:
        """Return the browser."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End it, and wait until it has."""
        self._ask("Browser.close")
        os.close(self._to_it)
        self._from_it.close()
        self._process.wait(timeout=120)

    def shown(self, page: str) -> str:
        """Return the page as the browser has it after its script; nothing may be said on the console."""
        file = self._folder / f"page-{next(self._numbers)}.html"
        file.write_text(page, encoding="utf-8")
        said: list[Told] = []
        # Nothing that one test's page leaves behind, such as its colours, is there for the next.
        context = self._ask("Target.createBrowserContext")["browserContextId"]
        target = self._ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable", session, said)
        self._ask("Page.navigate", session, said, url=file.as_uri())
        policy = {"policy": "pauseIfNetworkFetchesPending", "budget": _VIRTUAL_MILLISECONDS}
        self._ask("Emulation.setVirtualTimePolicy", session, said, **policy)
        self._read(lambda told: told.get("method") == "Emulation.virtualTimeBudgetExpired", said)
        text = self._ask("Runtime.evaluate", session, said, expression="document.documentElement.outerHTML")
        self._ask("Target.disposeBrowserContext", browserContextId=context)
        assert not [told for told in said if told.get("method") in _SAID]
        return str(text["result"]["value"])

    def _ask(self, method: str, session: str | None = None, said: list[Told] | None = None, **arguments: Any) -> Told:
        """Send a command and return its result; what the page tells meanwhile is added to `said`."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": arguments, **({"sessionId": session} if session else {})}
        os.write(self._to_it, json.dumps(command).encode() + b"\0")
        answer = self._read(lambda told: told.get("id") == number, said if said is not None else [])
        assert "error" not in answer, (method, answer)
        result: Told = answer["result"]
        return result

    def _read(self, wanted: Callable[[Told], bool], said: list[Told]) -> Told:
        """Return the first message that is wanted, and add those before it to `said`."""
        while True:
            message, end, rest = self._rest.partition(b"\0")
            if not end:
                more = os.read(self._from_it.fileno(), 1 << 20)
                assert more, "the browser has ended"
                self._rest += more
                continue
            self._rest = rest
            told: Told = json.loads(message)
            if wanted(told):
                return told
            said.append(told)

    def sticks_out(self, page: str, width: int) -> int:
        """Return by how many pixels a page that has drawn itself is wider than a screen of this width."""
        frame = (
            f'<iframe srcdoc="{html.escape(with_script(page, ""))}" style="border: 0; width: {width}px; height: 700px">'
        )
        measure = """
        onload = () => {
          const inner = document.querySelector("iframe").contentDocument.documentElement;
          document.body.dataset.width = `${inner.dataset.ready} ${inner.scrollWidth - inner.clientWidth}`;
        };
        """
        shown = self.shown(f"<!doctype html><body>{frame}</iframe><script>{measure}</script></body>")
        (told,) = re.findall(r'data-width="true (-?\d+)"', shown)
        return int(told)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return the browser of this process of pytest."""
    require(CHROMIUM)
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def with_script(page: str, script: str) -> str:
    """Return the page without its policy, which lets no other script run, and with this one at its end."""
    without = re.sub(r"<meta http-equiv.*?>", "", page)
    return without.replace("</body>", f"<script>{script}</script></body>")
