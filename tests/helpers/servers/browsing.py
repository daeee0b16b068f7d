"""Chromium without a window, driven by Playwright: whether it is there, and pages that notice what goes wrong."""

import shutil
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)

needs_browser = pytest.mark.skipif(
    PROGRAM is None or find_spec("playwright") is None, reason="needs playwright and a Chromium in PATH"
)


@contextmanager
def chromium(*flags):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox", *flags])
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What a page did that it should not: errors in its scripts, violations of its policy, requests to other hosts."""

    def __init__(self, page, origin):
        self.faults, self.origin, self.expected = [], origin, ()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._console)
        page.on("request", self._request)

    def _console(self, message):
        if message.type in ("error", "warning") and not any(word in message.text for word in self.expected):
            self.faults.append(message.text)

    def _request(self, request):
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.faults.append(f"requests {request.url:.200}")


@contextmanager
def watched_page(browser, origin, **settings):
    """A page in a context of its own; fails if anything goes wrong in it."""
    with browser.new_context(base_url=origin, **settings) as context:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.watch = Watch(page, origin)
        yield page
        assert page.watch.faults == []
