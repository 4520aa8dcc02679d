"""The report in a real browser: no requests, no console messages, no horizontal scrolling."""

import shutil

import pytest

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; apt-get install chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_report_opens_without_requests_or_messages(browser, comparison, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(comparison.page.as_uri())
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".verdict li").all_inner_texts() == list(comparison.document["verdict"]["sentences"])
    ink, paper = (page.evaluate(f"getComputedStyle(document.body).{what}") for what in ("color", "backgroundColor"))
    assert brightness(ink) < brightness(paper) if scheme == "light" else brightness(ink) > brightness(paper)
    context.close()


def brightness(colour):
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
