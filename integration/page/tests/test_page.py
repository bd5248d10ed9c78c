"""The pages of daemon and router in a real browser, of a real daemon, engine and router.

KVCONND names the program and CHROMIUM the browser. With SCREENSHOTS, a folder, pictures are written there.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
KVCONND = os.environ.get("KVCONND", "")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")
TOKEN = "let-me-see"
MARKUP = "<img src=x onerror=window.hit=1>"

pytestmark = [
    pytest.mark.skipif(not KVCONND, reason="KVCONND names no kvconnd"),
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: CHROMIUM names none"),
]


class Process:
    """A kvconnd whose log names its HTTP address."""

    def __init__(self, folder: Path, name: str, *arguments: str, **environment: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen([KVCONND, *arguments], stderr=log, env={**os.environ, **environment})
        self.url = "http://" + self.find(r"http=(127\.0\.0\.1:\d+)")

    def find(self, pattern: str) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            assert self.child.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        self.child.terminate()
        self.child.wait(60)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvconn-page") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Process]:
    socket = folder / "s"
    arguments = (
        "--dir",
        str(folder / "store"),
        "--socket",
        str(socket),
        "--http",
        "127.0.0.1:0",
        "--max-bytes",
        "1GB",
        "--host-bytes",
        "128MiB",
    )
    process = Process(folder, "serve", "serve", *arguments, "--min-free", "0", KVCONN_HTTP_TOKEN=TOKEN)
    process.find(r"msg=(ready)")
    engine = subprocess.Popen(
        [KVCONND, "demo-engine", "--socket", str(socket)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert engine.stdin
    assert engine.stdout
    assert b"ready" in engine.stdout.readline()
    rng = random.Random(1)
    prompts = [[rng.randrange(1, 200) for _ in range(160)] for _ in range(3)]
    for round_ in range(3):
        for n, tokens in enumerate(prompts):
            request = {"id": f"{round_}.{n}", "tokens": tokens, "max_tokens": 2}
            engine.stdin.write(json.dumps(request).encode() + b"\n")
            engine.stdin.flush()
            assert b'"error"' not in engine.stdout.readline()
    yield process
    engine.stdin.close()
    engine.wait(60)
    process.stop()


class Engine(BaseHTTPRequestHandler):
    """An engine that is well, and no more: decisions need none."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def router(folder: Path) -> Iterator[Process]:
    engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    settings = folder / "router.yaml"
    model = json.dumps("m" + MARKUP)
    endpoint = f"http://127.0.0.1:{engine.server_port}"
    ranks = "\n".join(
        f"  - {{model: {model}, endpoint: '{endpoint}', dp_mode: internal, dp_rank: {n}}}" for n in range(2)
    )
    settings.write_text(f"ranks:\n{ranks}\ndrain_delay: 0s\n")
    process = Process(folder, "router", "router", "--config", str(settings), "--http", "127.0.0.1:0")
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(process.url + "/readyz", timeout=5)
            break
        except OSError:
            assert time.monotonic() < until, process.log.read_text()
            time.sleep(0.1)
    for n in range(30):
        body = json.dumps({"token_ids": [n // 6] * 64, "conversation_id": str(n // 6)}).encode()
        urllib.request.urlopen(urllib.request.Request(process.url + "/v1/route", body), timeout=60)
    yield process
    process.stop()
    engine.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture(params=[(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")], ids=lambda p: f"{p[0]}-{p[1]}")
def page(browser: sync_api.Browser, request: pytest.FixtureRequest) -> Iterator[sync_api.Page]:
    width, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, is_mobile=width < 500, has_touch=width < 500
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.wrong = []  # what the browser complains of, and requests that leave the server
    page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" and "401" not in m.text else None)
    page.on("pageerror", lambda e: page.wrong.append(str(e)))
    page.on("request", lambda r: page.wrong.append(r.url) if not r.url.startswith("http://127.0.0.1:") else None)
    page.picture = f"{width}-{scheme}"
    yield page
    context.close()


def check(page: sync_api.Page, name: str) -> None:
    assert page.wrong == []
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, f"the page is {width} pixels wider than its window"
    assert page.evaluate("window.hit") is None, "text was taken for markup"
    dark = "dark" in page.picture
    brightness = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    )
    assert (brightness < 200) == dark
    if SCREENSHOTS:
        page.evaluate("document.activeElement.blur()")
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}-{page.picture}.png"), full_page=True)


def reads_by_keyboard(page: sync_api.Page) -> None:
    figure = page.locator("figure").first
    figure.focus()
    page.keyboard.press("ArrowLeft")
    assert "ago" in figure.locator("figcaption span").inner_text()


def test_the_daemons_page(page: sync_api.Page, daemon: Process) -> None:
    page.goto(daemon.url + "/")
    page.wait_for_selector("#token-value:focus")  # nothing is shown without the token
    assert page.locator("figure").count() == 0
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#health")).to_have_text("good", timeout=60_000)
    assert page.locator("figure svg[role=img]").count() == 4
    assert page.locator("#tiers tr").count() == 3
    assert "demo-" in page.locator("#engines").inner_text()
    expect(page.locator("figure path[d^=M]").first).to_be_attached(timeout=60_000)
    expect(page.locator("#models")).to_contain_text("kvconn-demo", timeout=90_000)  # it is counted every half a minute
    reads_by_keyboard(page)
    check(page, "daemon")


def test_a_daemon_that_goes_away_is_told(browser: sync_api.Browser, folder: Path) -> None:
    arguments = (
        "--dir",
        str(folder / "other"),
        "--socket",
        str(folder / "o"),
        "--http",
        "127.0.0.1:0",
        "--max-bytes",
        "64MiB",
        "--host-bytes",
        "64MiB",
    )
    process = Process(folder, "other", "serve", *arguments, "--min-free", "0")
    page = browser.new_page()
    page.goto(process.url + "/")
    expect(page.locator("#health")).to_have_text("good", timeout=60_000)
    process.stop()
    expect(page.locator("#health")).to_have_text("no answer", timeout=60_000)
    page.close()


def test_the_routers_page(page: sync_api.Page, router: Process) -> None:
    page.goto(router.url + "/")
    expect(page.locator("#health")).to_contain_text("good", timeout=60_000)
    assert page.locator("#ranks tr").count() == 3
    assert page.locator("#decisions tr").count() == 31
    assert "the lowest cost" in page.locator("#decisions").inner_text()
    assert MARKUP in page.locator("#ranks").inner_text()
    reads_by_keyboard(page)
    check(page, "router")
