"""The page of a timeline in a browser: what is seen, what keys and fingers do, and that no network is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from protocol.messages import SpanKind
from tests import chromium
from tests.chromium import Chromium
from tests.made_traces import lockstep_run, overlapped_run, write_trace
from timeline.__main__ import main
from timeline.colours import BOTH, DEVICE_IDLE, DEVICE_ONLY, OF_KIND, OF_MOMENT

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


def test_keys_that_are_typed_into_a_field_do_nothing_else(tab: Chromium) -> None:
    before = tab.run(SEEN)
    tab.run("document.getElementById('step').focus()")
    tab.press("0", "+", "n")
    assert tab.run(SEEN) == before
    assert tab.run("return page.selected") is None


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
    tab.press(Keys.BACKSPACE, Keys.BACKSPACE, "abc", Keys.ENTER)
    assert tab.text("said") == "“abc” is no step's number."


def test_of_several_runs_the_selected_steps_is_named(tab: Chromium, pages: Path) -> None:
    open_page(tab, pages / "both.html")
    tab.run("document.getElementById('step').focus()")
    tab.press("20", Keys.ENTER)
    assert tab.text("said").startswith("lockstep, step 20: ")
    tab.run("const run = page.header.runs[1]; page.select(run, run.ways.of.get(run.ways.keys[4]))")
    assert tab.text("said").startswith("overlapped, step 5: ")


def test_runs_beside_each_other_are_at_the_same_phase(tab: Chromium, pages: Path) -> None:
    open_page(tab, pages / "both.html")
    first = [
        tab.run(
            "const run = page.header.runs[arguments[0]], { keys, of } = run.ways;"
            "return keys.map((key) => page.view.x(of.get(key).began - run.origin)).find((x) => x >= GUTTER)",
            number,
        )
        for number in (0, 1)
    ]
    assert first[0] == pytest.approx(first[1], abs=1)


def test_the_axis_counts_from_where_the_recording_began(tab: Chromium, pages: Path) -> None:
    open_page(tab, pages / "both.html")
    tab.run("""
        window.written = [];
        const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            written.push([text, x]);
            write.apply(this, arguments);
        };
        page.painter.paint(null);
        CanvasRenderingContext2D.prototype.fillText = write;
    """)
    written = tab.run(
        "return written.filter(([text]) => /^[\\d.]+ ms$/.test(text)).map(([text, x]) => [parseFloat(text), x])"
    )
    for number in (0, 1):
        low, per = tab.run(
            "return [page.view.from + page.header.runs[arguments[0]].origin, page.view.perPixel]", number
        )
        right = [at for at, x in written if abs((at * 1e6 - low) / per + tab.run("return GUTTER") - x) < 1]
        assert len(right) >= 3


def test_what_shares_a_pixel_is_stacked_over_its_full_height(tab: Chromium, pages: Path) -> None:
    open_page(tab, pages / "both.html")
    tab.run("page.view.room; page.view.show(0, 0); page.view.span = 1e6 * page.view.room; page.view.from = -8e6")
    colours = tab.run("""
        page.painter.paint(null);
        const row = page.header.runs[0].rows.find((each) => each.shows === "strip");
        const scale = devicePixelRatio, canvas = page.canvas;
        const one = new OffscreenCanvas(1, row.height * scale).getContext("2d", { willReadFrequently: true });
        one.drawImage(canvas, Math.round(page.view.x(5e6) * scale), Math.round(row.y * scale), 1, row.height * scale,
            0, 0, 1, row.height * scale);
        const pixels = one.getImageData(0, 0, 1, row.height * scale).data, found = [];
        for (let i = 0; i < pixels.length; i += 4) {
            found.push("#" + [...pixels.slice(i, i + 3)].map((value) => value.toString(16).padStart(2, "0")).join(""));
        }
        return found;
    """)
    assert colours == [OF_MOMENT[DEVICE_ONLY]] * 16 + [OF_MOMENT[DEVICE_IDLE]] * 4  # 800 µs of 1000, and 200


def test_touching_steps_have_no_gap_between_them(tab: Chromium) -> None:
    tab.run("page.view.show(8e6, 8e6 + 7777777)")
    assert tab.run("""
        page.painter.paint(null);
        const row = page.header.runs[0].rows.find((each) => each.shows === "compute"), scale = devicePixelRatio;
        const wide = Math.floor(page.view.room * scale) - 2;
        const line = new OffscreenCanvas(wide, 1).getContext("2d", { willReadFrequently: true });
        line.drawImage(page.canvas, (GUTTER + 1) * scale, (row.y + 5) * scale, wide, 1, 0, 0, wide, 1);
        const pixels = line.getImageData(0, 0, wide, 1).data;
        return Math.max(...pixels.filter((_, i) => i % 4 === 0));
    """) <= int(OF_KIND[SpanKind.SAMPLE][1:3], 16)


def test_the_legend_has_all_that_is_seen(tab: Chromium, pages: Path) -> None:
    def said() -> list[str]:
        return tab.text("legend").splitlines()

    assert {
        "device and CPU busy", "device busy", "planned → computed", "computed → settled", "waiting",
        "What shares a pixel is stacked, by its shares of the time.", "forward, of even and odd steps",
    } <= set(said())  # fmt: skip
    assert not any(line.startswith("device idle") for line in said())
    open_page(tab, pages / "both.html")
    assert "device idle, in the strip and above it" in said()


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
    room = tab.run("return page.canvas.clientWidth")
    wide = tab.run("""
        page.painter.paint(null);
        page.painter.context.font = `13px ${FONT}`;
        return page.header.runs[0].lines.map((line) => page.painter.context.measureText(line).width);
    """)
    assert len(wide) > 1
    assert max(wide) <= room
