"""Pages in Chromium: how one is opened, and what every page has to stand."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP: Any = {"width": 1280, "height": 860}
PHONE: Any = {"width": 390, "height": 844}
#: Colours do not hang on the size, nor the layout on the colours: these have each of both once.
LOOKS = [
    pytest.param("light", DESKTOP, id="light"),
    pytest.param("dark", PHONE, id="phone-dark"),
]
if os.environ.get("SCREENSHOTS"):  # `make screenshots`
    LOOKS += [
        pytest.param("dark", DESKTOP, id="dark"),
        pytest.param("light", PHONE, id="phone"),
    ]
#: What axe-core calls a barrier, and not a blemish.
GRAVE = {"serious", "critical"}


@contextlib.contextmanager
def new_context(browser: Browser, url: str, **options: Any) -> Iterator[BrowserContext]:
    """A fresh profile that fails the test on an error in a page or a request to anywhere else."""
    options = {"viewport": DESKTOP, "locale": "en-GB"} | options
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(15_000)
    troubles: list[str] = []
    context.on("weberror", lambda error: troubles.append(str(error.error)))
    context.on(
        "request",
        lambda request: request.url.startswith((url, "data:")) or troubles.append(request.url),
    )
    yield context
    context.close()
    assert troubles == [], troubles


def reach(page: Page, selector: str) -> None:
    """Press Tab until the element has the focus; the page must not take ages to walk."""
    for _ in range(60):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab never reaches {selector}")


def check_accessible(page: Page) -> None:
    """axe-core finds nothing serious or critical on the page as it is now."""
    grave = [
        f"{found['impact']}: {found['help']} ({found['id']}): {node['target']} {node['html']}"
        for found in Axe().run(page).response["violations"]
        if found["impact"] in GRAVE
        for node in found["nodes"]
    ]
    assert grave == [], "\n".join(grave)


def check_readable(page: Page, ours: str = 'main [class*="idem-"]') -> None:
    """Nothing sticks out sideways, and our own text stands out from what is behind it."""
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    faint = [text for text, ratio in page.evaluate(CONTRASTS, ours) if ratio < 4.5]
    assert faint == [], faint


#: The contrast (WCAG 2) of every visible text in our elements with its nearest opaque background.
CONTRASTS = """ours => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const found = channels(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll(`${ours}, :is(${ours}) *`)]
    .filter(node => node.checkVisibility() && [...node.childNodes].some(
      child => child.nodeType === 3 && child.data.trim()))
    .map(node => {
      const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))];
      return [node.textContent.trim(), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
    });
}"""
