"""What headless Chromium makes of a page, for the tests of the page of a run and of that of all jobs."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
    "--window-size=1000,800",
)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on the PATH, which Debian has in the package of that name"
)


def browse(page: str, folder: Path) -> str:
    """Return the page as headless Chromium has it after its script; nothing may be said on the console."""
    assert CHROMIUM is not None
    (folder / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{folder}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout


def with_script(page: str, script: str) -> str:
    """Return the page without its policy, which lets no other script run, and with this one at its end."""
    without = re.sub(r"<meta http-equiv.*?>", "", page)
    return without.replace("</body>", f"<script>{script}</script></body>")


def sticks_out(page: str, width: int, folder: Path) -> int:
    """Return by how many pixels a page that has drawn itself is wider than a screen of this width."""
    frame = f'<iframe srcdoc="{html.escape(with_script(page, ""))}" style="border: 0; width: {width}px; height: 700px">'
    measure = """
    onload = () => {
      const inner = document.querySelector("iframe").contentDocument.documentElement;
      document.body.dataset.width = `${inner.dataset.ready} ${inner.scrollWidth - inner.clientWidth}`;
    };
    """
    shown = browse(f"<!doctype html><body>{frame}</iframe><script>{measure}</script></body>", folder)
    (told,) = re.findall(r'data-width="true (-?\d+)"', shown)
    return int(told)
