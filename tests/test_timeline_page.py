"""The live page in a browser: what a user sees, with a keyboard alone, when all is well and when it is not.

With STEPAHEAD_PICTURES=FOLDER, pictures of it are left there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from frontend.config import ServeConfig
from protocol.messages import Submit
from tests import chromium
from tests.chromium import Chromium
from tests.fake_desk import RECORDED, FakeDesk, busy_view, even_view
from tests.page_server import PageServer
from tests.word_tokenizer import EOS, word, word_text

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not chromium.is_there(), reason="needs Chromium and its chromedriver"),
]

SENTENCE = (
    "While the device computes one batch, the scheduler has already built and shipped the next one. The sampled "
    "tokens come back one step late, and what they change is settled in the shadow of the step that runs. "
    "So the device never waits for Python: that is all there is to it."
)
SPOKEN = SENTENCE.replace(" ", " Ġ").split()
WORDS = tuple(dict.fromkeys(SPOKEN))
PACE = 0.01
STRIP = "return document.getElementById('strip').toDataURL()"
STRIP_COLOUR = """
    const canvas = document.getElementById("strip");
    const [left, top] = [canvas.width / 2 + 2, canvas.height * (arguments[0] ?? 0.25)];
    const pixel = canvas.getContext("2d").getImageData(left, top, 1, 1).data;
    return "#" + [...pixel.slice(0, 3)].map((value) => value.toString(16).padStart(2, "0")).join("");
"""

Serve = Callable[..., PageServer]


def script(submit: Submit) -> list[int]:
    """The sentence; over and over for whom asks with more than a short prompt."""
    sentence = [word(WORDS.index(each)) for each in SPOKEN]
    return [*sentence, EOS] if len(submit.prompt) < 60 else sentence * 100


@pytest.fixture(scope="module")
def tab() -> Iterator[Chromium]:
    with Chromium() as tab:
        yield tab


@pytest.fixture
def browser(tab: Chromium) -> Chromium:
    """The one browser; every test has a server of its own, at another port, so it remembers nothing of the others."""
    tab.open("about:blank")
    tab.look(width=1280, height=1000)
    tab.complaints()
    return tab


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[PageServer] = []

    def make(desk: FakeDesk | None = None, *, template: bool = True, **settings: Any) -> PageServer:
        text = word_text(*WORDS) if template else word_text(*WORDS, template=None)
        settings = {"pace": PACE, "max_model_len": 4096, "vocab_size": 1000} | settings
        servers.append(PageServer(text, script, desk or FakeDesk(moving=busy_view), **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.__exit__(None, None, None)


def test_tokens_arrive_while_the_strip_moves(browser: Chromium, serve: Serve) -> None:
    browser.open(serve().url)
    browser.wait(lambda: browser.text("busy") == "99.4 %", "the figures never came")
    browser.wait(lambda: browser.text("model") == "words", "the model has no name")
    assert browser.text("health") == "Serving"
    figures = {id: browser.text(id) for id in ("step", "tokens", "running", "waiting", "kv")}
    assert figures == {"step": "8.1 ms", "tokens": "3,871", "running": "32", "waiting": "5", "kv": "67 %"}
    browser.find("prompt").click()
    browser.press("How is it so fast?", Keys.ENTER)
    browser.wait(lambda: browser.text("answer"), "no text came")
    assert browser.find("answer").get_attribute("aria-busy") == "true"
    before = browser.run(STRIP)
    browser.wait(lambda: browser.run(STRIP) != before, "the strip stands still")
    browser.wait(lambda: browser.text("answer") == SENTENCE, "the answer is not the model's")
    browser.wait(lambda: browser.text("answer-facts"), "nothing is said of the answer")
    assert f"{len(SPOKEN) + 1} tokens" in browser.text("answer-facts")
    assert browser.find("answer").get_attribute("aria-busy") == "false"
    assert browser.find("send").is_displayed()
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("view", "colour"),
    [
        ({"device": 255, "work": 255, "both": 255}, "both"),
        ({"device": 255, "work": 0, "both": 0}, "device"),
        ({"device": 0, "work": 255, "both": 0}, "idle"),
        ({"device": 0, "work": 0, "both": 0}, "nothing"),
        ({"device": 0, "work": 255, "both": 0, "every": 50}, "nothing"),
        ({"device": 0, "work": 255, "both": 0, "known": 0}, "unknown"),
    ],
    ids=["both at once", "device alone", "device idle", "all idle", "heartbeats", "not told yet"],
)
def test_the_strip_has_the_colour_of_what_was_done(
    browser: Chromium, serve: Serve, view: dict[str, int], colour: str
) -> None:
    browser.open(serve(FakeDesk(moving=lambda now: even_view(now, **view))).url)
    browser.wait(lambda: browser.text("busy") == "0.0 %", "the figures never came")
    wanted = browser.run(f"return getComputedStyle(document.documentElement).getPropertyValue('--{colour}').trim()")
    browser.wait(lambda: browser.run(STRIP_COLOUR) == wanted, f"the strip is not {colour}")


def test_of_two_devices_one_of_which_is_idle_half_the_strip_has_the_colour_of_either(
    browser: Chromium, serve: Serve
) -> None:
    browser.open(serve(FakeDesk(moving=lambda now: even_view(now, 128, 255, 128, devices=2))).url)
    browser.wait(lambda: browser.text("busy") == "0.0 %", "the figures never came")
    for colour, height in (("idle", 0.1), ("idle", 0.23), ("both", 0.3), ("both", 0.5)):
        wanted = browser.run(f"return getComputedStyle(document.documentElement).getPropertyValue('--{colour}').trim()")
        assert_strip_shows(browser, wanted, height)


def assert_strip_shows(browser: Chromium, wanted: str, height: float) -> None:
    # At once, unless a line that marks a second is passing by.
    browser.wait(lambda: near(browser.run(STRIP_COLOUR, height), wanted), f"no {wanted} at {height}")


def near(colour: str, wanted: str) -> bool:
    """Whether they can't be told apart: 128 of 255 is not quite a half."""
    return all(abs(int(colour[at : at + 2], 16) - int(wanted[at : at + 2], 16)) <= 2 for at in (1, 3, 5))


def test_escape_stops_an_answer_and_the_server_hears_of_it(browser: Chromium, serve: Serve) -> None:
    server = serve()
    browser.open(server.url)
    browser.find("prompt").click()
    browser.press("Tell me, ", Keys.SHIFT + Keys.ENTER + Keys.NULL, "and never end. " * 5, Keys.ENTER)
    browser.wait(lambda: browser.text("answer"), "no text came")
    assert not browser.find("send").is_displayed()
    browser.press(Keys.ESCAPE)
    browser.wait(lambda: "stopped" in browser.text("answer-facts"), "it was not stopped")
    browser.wait(lambda: server.inside(lambda driver: driver.aborted), "the server was not told")
    assert browser.focus == "prompt"
    assert browser.text("answer-problem") == ""
    shown = browser.text("answer")
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.text("answer") != shown, "it can't be asked again")
    browser.find("stop").click()
    browser.wait(lambda: len(server.inside(lambda driver: driver.aborted)) == 2, "the button does not stop")
    assert browser.complaints() == []


def test_a_model_without_a_chat_template_goes_on_with_the_prompt(browser: Chromium, serve: Serve) -> None:
    browser.open(serve(template=False).url)
    browser.find("prompt").click()
    for _ in range(2):
        browser.press(Keys.ENTER) if browser.text("answer") else browser.press("So fast, because", Keys.ENTER)
        browser.wait(lambda: "no chat template" in browser.text("answer-facts"), "it was not continued")
        assert browser.text("answer") == SENTENCE
        assert browser.text("answer-problem") == ""


def test_what_is_wrong_with_a_request_is_said_in_words(browser: Chromium, serve: Serve) -> None:
    browser.open(serve(max_model_len=16).url)
    browser.find("prompt").click()
    browser.press("far too long for a context of sixteen tokens", Keys.ENTER)
    problem = browser.wait(lambda: browser.text("answer-problem"), "nothing was said")
    assert "16" in problem
    assert "{" not in problem
    assert browser.find("send").is_displayed()


def test_an_error_in_the_middle_of_an_answer_is_said_below_it(browser: Chromium, serve: Serve) -> None:
    browser.open(serve(fails="the worker has burnt down", fails_after=5).url)
    browser.find("prompt").click()
    browser.press("hello", Keys.ENTER)
    browser.wait(lambda: browser.text("answer-problem") == "the worker has burnt down", "nothing was said")
    assert SENTENCE.startswith(browser.text("answer"))
    assert browser.text("answer") != ""


def test_a_recording_is_started_and_stopped_and_refusals_are_read_out(browser: Chromium, serve: Serve) -> None:
    desk = FakeDesk(moving=busy_view)
    browser.open(serve(desk).url)
    browser.find("file").click()
    browser.press("../up.json.gz", Keys.ENTER)
    browser.wait(lambda: "must be a plain name" in browser.text("record-problem"), "the name was not refused")
    browser.find("file").clear()
    browser.find("file").click()
    browser.press("run.json.gz", Keys.ENTER)
    browser.wait(lambda: browser.text("record") == "Stop recording", "it was not started")
    assert browser.text("record-problem") == ""
    browser.wait(lambda: "spans" in browser.text("record-state"), "nothing is said of it")
    assert browser.text("record-state").startswith("Recording run.json.gz · ")
    assert browser.find("file").get_attribute("value") == "", "the next recording would want the same file"
    browser.find("record").click()
    browser.wait(lambda: browser.text("record") == "Record", "it was not stopped")
    assert browser.text("record-state").startswith("Recorded run.json.gz · ")
    desk.problem = "the disk is full"
    browser.wait(lambda: "the disk is full" in browser.text("record-problem"), "a failed recording goes unnoticed")
    desk.collector = False
    browser.wait(lambda: browser.text("record-state") == "no timeline collector answers", "its absence goes unnoticed")
    assert browser.find("record").get_attribute("aria-disabled") == "true"
    browser.wait(lambda: "collector has sent nothing" in browser.text("strip-note"), "the strip does not say so")


@pytest.mark.parametrize("key", [None, "secret"])
def test_a_recording_is_downloaded_when_it_has_ended(
    browser: Chromium, serve: Serve, tmp_path: Path, key: str | None
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    browser.downloads(here)
    browser.open(serve(FakeDesk(moving=busy_view, folder=there), config=ServeConfig(api_key=key)).url)
    if key is not None:
        browser.wait(lambda: browser.focus == "key", "nobody asks for the key")
        browser.press(key, Keys.ENTER)
    browser.wait(lambda: browser.text("busy") == "99.4 %", "the figures never came")
    assert not browser.find("download").is_displayed()
    browser.find("file").click()
    browser.press("größer.json.gz", Keys.ENTER)
    browser.wait(lambda: browser.text("record") == "Stop recording", "it was not started")
    assert not browser.find("download").is_displayed()
    browser.find("record").click()
    browser.wait(lambda: browser.find("download").is_displayed(), "there is nothing to download")
    browser.complaints()
    browser.find("download").click()
    browser.wait(lambda: (here / "größer.json.gz").exists(), "the file never came")
    assert (here / "größer.json.gz").read_bytes() == RECORDED
    assert browser.complaints() == []
    (there / "größer.json.gz").unlink()
    browser.find("download").click()
    browser.wait(
        lambda: "it is gone, or the collector" in browser.text("record-problem"), "nobody says that it is gone"
    )


def test_a_collector_that_is_not_there_is_seldom_asked_for_until_it_is_heard_of(
    browser: Chromium, serve: Serve
) -> None:
    desk = FakeDesk(moving=busy_view, collector=False)
    browser.open(serve(desk).url)
    browser.wait(lambda: browser.text("record-state") == "no timeline collector answers", "its absence goes unnoticed")
    time.sleep(2.5)
    assert len(desk.asked) == 1
    assert len(browser.complaints()) == 1
    desk.collector = True
    browser.wait(
        lambda: browser.find("record").get_attribute("aria-disabled") == "false", "nobody sees that it is back"
    )


def test_the_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(browser: Chromium, serve: Serve) -> None:
    server = serve()
    browser.open(server.url)
    browser.wait(lambda: browser.text("busy") == "99.4 %", "the figures never came")
    server.go_away()
    browser.wait(lambda: browser.text("health") == "Server is gone", "nobody notices")
    browser.wait(lambda: "does not answer" in browser.text("strip-note"), "the strip does not say so")
    assert browser.text("busy") == "–"
    browser.find("prompt").click()
    browser.press("hello", Keys.ENTER)
    browser.wait(lambda: "does not answer" in browser.text("answer-problem"), "the question is lost")
    server.come_back()
    browser.wait(lambda: browser.text("busy") == "99.4 %", "it does not recover")
    browser.wait(lambda: browser.text("health") == "Serving", "it does not recover")
    assert browser.text("strip-note") == ""
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.text("answer") == SENTENCE, "it can't be asked again")


def test_the_key_is_asked_for_and_used(browser: Chromium, serve: Serve) -> None:
    browser.open(serve(config=ServeConfig(api_key="secret")).url)
    browser.wait(lambda: browser.focus == "key", "nobody asks for the key")
    assert browser.text("strip-note") == "Waiting for the API key"
    browser.press("wrong", Keys.ENTER)
    browser.wait(lambda: browser.text("key-problem") == "The key is wrong.", "a wrong key goes unnoticed")
    browser.press("secret", Keys.ENTER)
    browser.wait(lambda: browser.text("busy") == "99.4 %", "the key is not used")
    browser.wait(lambda: browser.text("model") == "words", "the key is not used everywhere")
    assert not browser.find("key-form").is_displayed()
    browser.complaints()
    browser.press("hello", Keys.ENTER)
    browser.wait(lambda: browser.text("answer") == SENTENCE, "the key is not used to ask")
    assert browser.complaints() == []


def test_a_hidden_page_asks_for_nothing(browser: Chromium, serve: Serve) -> None:
    server = serve()
    browser.open(server.url)
    browser.wait(lambda: server.desk.watched > 2, "it never looks")
    with browser.hidden():
        watched = server.desk.watched
        time.sleep(1.5)
        assert server.desk.watched <= watched + 1
    browser.wait(lambda: server.desk.watched > watched + 2, "it does not look again")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(
    browser: Chromium, serve: Serve, width: int, dark: bool, tmp_path: Path
) -> None:
    browser.look(width=width, height=900, dark=dark, scale=2)
    browser.open(serve().url)
    browser.wait(lambda: browser.text("busy") == "99.4 %", "the figures never came")
    browser.find("prompt").click()
    browser.press("How is it so fast?", Keys.ENTER)
    browser.wait(lambda: browser.text("answer-facts"), "no answer came")
    browser.find("record").click()
    browser.wait(lambda: "spans" in browser.text("record-state"), "nothing is said of the recording")
    assert browser.run("return document.documentElement.scrollWidth") == width
    folder = Path(os.environ.get("STEPAHEAD_PICTURES", tmp_path))
    browser.picture(folder / f"timeline-{'dark' if dark else 'light'}-{width}.png")
    assert browser.complaints() == []
