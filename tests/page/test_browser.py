"""tests.page.browser: the browser of the tests of pages sees what is wrong with one."""

import pytest
from tests.page.browser import Browser


@pytest.mark.parametrize("script", ["console.error('said')", "undefined.x", "fetch('https://example.invalid/')"])
def test_what_a_page_says_on_the_console_fails(browser: Browser, script: str) -> None:
    """A message, an error that nothing catches and a fetch that its policy refuses each fail the test of a page."""
    policy = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'">"""
    with pytest.raises(AssertionError, match="method"):
        browser.shown(f"<!doctype html><html><head>{policy}</head><body><script>{script}</script></body></html>")


def test_pages_know_nothing_of_each_other(browser: Browser) -> None:
    """What one page has stored, the next does not find; and a script has its time to end."""
    script = """setTimeout(() => {
      document.body.dataset.found = localStorage.length;
      localStorage.setItem("a", "b");
    }, 2000);"""
    for _ in range(2):
        assert 'data-found="0"' in browser.shown(f"<!doctype html><body><script>{script}</script></body>")
