"""The page of a timeline in a browser: what is seen, what keys and fingers do, and that no network is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests import chromium
from tests.chromium import Chromium
from tests.made_traces import lockstep_run, overlapped_run, write_trace
from timeline.__main__ import main
from timeline.colours import BOTH, DEVICE_IDLE, OF_MOMENT

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not chromium.is_there(), reason="needs Chromium and its chromedriver"),
]

STEPS = 40
SEEN = "return [page.view.from, page.view.span]"
PAINTED = """
    page.painter.paint(page.selected);
    const row = page.header.runs[arguments[0]].rows.find((each) => each.shows === arguments[1]);
    const canvas = page.canvas, scale = canvas.width / canvas.clientWidth, run = page.header.runs[arguments[0]];
    const x = page.view.x(arguments[2] - run.origin), y = row.y + row.height / 2;
    const one = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    one.drawImage(canvas, Math.round(x * scale), Math.round(y * scale), 1, 1, 0, 0, 1, 1);
    const pixel = [...one.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    return "#" + pixel.map((value) => value.toString(16).padStart(2, "0")).join("");
"""
POINT = """
    const row = page.header.runs[0].rows.find((each) => each.shows === "compute");
    const box = page.canvas.getBoundingClientRect();
    const [clientX, clientY] = [box.x + page.view.x(arguments[1]), box.y + row.y + 5];
    const place = { bubbles: true, pointerId: 1, clientX, clientY };
    for (const type of arguments[0]) page.canvas.dispatchEvent(new PointerEvent(type, place));
"""
WHEEL = """
    const box = page.canvas.getBoundingClientRect();
    page.canvas.dispatchEvent(new WheelEvent("wheel",
        { deltaY: arguments[0], clientX: box.x + page.view.x(arguments[1]), clientY: box.y + 50, cancelable: true }));
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """overlapped.html, of one run, and both.html, of two."""
    folder = tmp_path_factory.mktemp("pages")
    lockstep = write_trace(folder / "lockstep.json", *lockstep_run(STEPS))
    overlapped = write_trace(folder / "overlapped.json", *overlapped_run(STEPS))
    assert main(["draw", str(overlapped), "--out", str(folder / "overlapped.html")]) == 0
    assert main(["compare", str(lockstep), str(overlapped), "--out", str(folder / "both.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as tab:
        yield tab


@pytest.fixture
def tab(browser: Chromium, pages: Path) -> Iterator[Chromium]:
    browser.look(width=1280, height=800)
    open_page(browser, pages / "overlapped.html")
    yield browser
    assert browser.complaints() == []


def open_page(tab: Chromium, path: Path) -> None:
    tab.open(path.as_uri())
    tab.wait(lambda: tab.run("return Boolean(window.page && page.view)"), "the page is not drawn")
    tab.run("page.canvas.focus()")


def test_the_page_asks_no_network(tab: Chromium) -> None:
    assert tab.run("return performance.getEntriesByType('resource').length") == 0


def test_what_was_idle_is_red_and_what_overlapped_is_green(tab: Chromium, pages: Path) -> None:
    open_page(tab, pages / "both.html")
    tab.run("page.view.show(page.view.first, page.view.last)")
    at = 200_000 + 5_000_000  # step 6 of both is 1000 µs or 800 µs long
    assert tab.run(PAINTED, 0, "strip", at + 900_000) == OF_MOMENT[DEVICE_IDLE]
    assert tab.run(PAINTED, 1, "strip", 200_000 + 6 * 800_000 + 70_000) == OF_MOMENT[BOTH]


def test_keys_zoom_and_move(tab: Chromium) -> None:
    start, span = tab.run(SEEN)
    tab.press("+")
    closer_start, closer = tab.run(SEEN)
    assert closer == pytest.approx(span / 1.5)
    assert closer_start + closer / 2 == pytest.approx(start + span / 2)
    tab.press(Keys.ARROW_RIGHT)
    assert tab.run(SEEN)[0] == pytest.approx(closer_start + closer / 5)
    tab.press(Keys.ARROW_LEFT, "-")
    assert tab.run(SEEN) == pytest.approx([start, span])
    tab.press("0")
    assert tab.run("return [page.view.from, page.view.to]") == [0, tab.run("return page.header.runs[0].whole[1]")]
    tab.press("o")
    assert tab.run(SEEN) == pytest.approx([start, span])


def test_the_wheel_zooms_where_the_pointer_is(tab: Chromium) -> None:
    start, span = tab.run(SEEN)
    under = start + 0.8 * span
    before = tab.run("return page.view.x(arguments[0])", under)
    tab.run(WHEEL, -300, under)
    assert tab.run(SEEN)[1] < 0.7 * span
    assert tab.run("return page.view.x(arguments[0])", under) == pytest.approx(before, abs=1)


def test_dragging_moves_and_selects_nothing(tab: Chromium) -> None:
    start, span = tab.run(SEEN)
    tab.run("page.canvas.setPointerCapture = () => {}")
    tab.run(POINT, ["pointerdown"], start + span / 2)
    tab.run(POINT, ["pointermove", "pointerup"], start + span / 4)
    assert tab.run(SEEN)[0] == pytest.approx(start + span / 4, rel=0.01)
    assert tab.text("said") == "Click a step to follow it."


def test_a_click_follows_a_step_and_escape_lets_go(tab: Chromium) -> None:
    tab.run("page.canvas.setPointerCapture = () => {}")
    before, at = tab.run(SEEN), 200_000 + 11 * 800_000 + 400_000
    tab.run(POINT, ["pointerdown"], at)
    tab.run(POINT, ["pointermove", "pointerup"], at + tab.run("return 2 * page.view.perPixel"))  # a hand trembles
    assert tab.run(SEEN) == before
    assert tab.text("said") == (
        "Step 12: 4 rows, 4 tokens, computed in 800.0 µs; planned 700.0 µs before the device began, "
        "while it computed step 11; settled 20.00 µs after it ended."
    )
    assert tab.find("step").get_attribute("value") == "12"
    tab.press("n")
    assert tab.text("said").startswith("Step 13: ")
    tab.press("p", "p")
    assert tab.text("said").startswith("Step 11: ")
    tab.press(Keys.ESCAPE)
    assert tab.text("said") == "Click a step to follow it."


def test_a_step_is_found_by_its_number(tab: Chromium) -> None:
    tab.run("document.getElementById('step').focus()")
    tab.press("3", Keys.ENTER)
    assert tab.text("said").startswith("Step 3: ")
    start, span = tab.run(SEEN)
    assert start <= 200_000 + 2 * 800_000 <= start + span
    tab.press(Keys.BACKSPACE, "99", Keys.ENTER)
    assert tab.text("said") == "Step 99 was not computed."


def test_a_span_tells_what_it_is_when_it_is_pointed_at(tab: Chromium) -> None:
    tab.run(POINT, ["pointermove"], 200_000 + 19 * 800_000 + 400_000)
    told = tab.text("tip").splitlines()
    assert told == [
        "forward", "process worker 0 (cpu)", "step 20", "rows 4", "tokens 4", "decodes 4",
        "start 0.015400 s", "duration 750.0 µs",
    ]  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_drawn_in_the_colours_that_the_user_likes(tab: Chromium, dark: bool) -> None:
    tab.look(width=1280, height=800, dark=dark)
    background = tab.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")


def test_it_fits_a_small_screen(tab: Chromium) -> None:
    tab.look(width=380, height=700)
    tab.wait(lambda: tab.run("return page.view.width < 380"), "it keeps its width")
    assert tab.run("return document.documentElement.scrollWidth") <= 380
