"""The timeline over HTTP: its page loads for everybody, its data and its control are refused in words."""

from __future__ import annotations

import os
import tomllib
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from frontend.config import ServeConfig
from frontend.http.page_files import PAGE_PATHS
from protocol.messages import AskTimeline, StartTimeline, StopTimeline
from tests.fake_desk import RECORDED, FakeDesk, busy_view
from tests.http_driver import HttpDriver
from tests.test_http import error_of
from tests.word_tokenizer import EOS, word_text
from timeline.config import MOST_NAME_BYTES

ROOT = Path(__file__).parent.parent
PAGE_FILES = sorted(PAGE_PATHS)
CONTROL = pytest.mark.parametrize("path", ["/timeline/start", "/timeline/stop"])

Serve = Callable[..., HttpDriver]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Make drivers with a desk."""
    drivers: list[HttpDriver] = []

    def make(desk: FakeDesk, **settings: Any) -> HttpDriver:
        drivers.append(HttpDriver(word_text(), lambda submit: [EOS], desk=desk, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


# ---------------------------------------------------------------- the page


@pytest.mark.parametrize("path", PAGE_FILES)
async def test_the_page_loads_without_the_key_and_runs_nothing_of_others(serve: Serve, path: str) -> None:
    answer = await serve(FakeDesk(), config=ServeConfig(api_key="secret")).client.get(path)
    assert answer.status_code == 200
    kinds = {"timeline": "text/html", "css": "text/css", "js": "text/javascript"}
    kind = kinds[path.rpartition("/")[2].rpartition(".")[2]]
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "secret" not in answer.text


async def test_whatever_the_page_names_is_served(serve: Serve) -> None:
    it = serve(FakeDesk())
    page = (await it.client.get("/timeline")).text
    for path in set(PAGE_FILES) - {"/timeline"}:
        name = path.rpartition("/")[2]
        users = [page, *[(await it.client.get(other)).text for other in PAGE_FILES if other.endswith(".js")]]
        assert any(path.removeprefix("/") in user or f'"./{name}"' in user for user in users), f"{path} is in no use"
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_the_page_is_installed_with_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pattern,) = settings["tool"]["setuptools"]["package-data"]["frontend.http"]
    installed = set((ROOT / "frontend/http").glob(pattern))
    assert {path.name for path in installed} >= {path.rpartition("/")[2] for path in PAGE_FILES} - {"timeline"}
    assert ROOT / "frontend/http/page/index.html" in installed


@pytest.mark.parametrize("path", ["/timeline/page/index.html", "/timeline/page/..%2Flive", "/timeline/page/"])
async def test_no_other_path_below_the_page_is_served_or_open(serve: Serve, path: str) -> None:
    it = serve(FakeDesk(), config=ServeConfig(api_key="secret"))
    error_of(await it.client.get(path), 401)
    error_of(await it.client.get(path, headers={"authorization": "Bearer secret"}), 404)


@pytest.mark.parametrize("method_path", ["GET live", "GET status", "GET file", "POST start", "POST stop"])
async def test_data_and_control_need_the_key(serve: Serve, method_path: str) -> None:
    desk = FakeDesk()
    it = serve(desk, config=ServeConfig(api_key="secret"))
    method, path = method_path.split()
    error = error_of(await it.client.request(method, f"/timeline/{path}"), 401)
    assert error["code"] == "invalid_api_key"
    assert (desk.asked, desk.watched) == ([], 0)


# ---------------------------------------------------------------- the last seconds


async def test_the_last_seconds_arrive_as_the_desk_has_them(serve: Serve) -> None:
    view = busy_view(10**18)
    answer = await serve(FakeDesk(moving=lambda now: view)).client.get("/timeline/live")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    got = answer.json()["view"]
    for name in ("device", "scheduler", "worker", "both"):
        assert np.array_equal(np.frombuffer(b64decode(got.pop(name)), "<u1"), getattr(view, name))
    assert got == {
        "start_ms": view.start / 1e6,
        "bin_ms": 5.0,
        "known": 1200,
        "devices": 1,
        "busy": 0.994,
        "step_ms": pytest.approx(8.1),
        "tokens_per_second": 3871.4,
        "running": 32,
        "waiting": 5,
        "blocks_used": 8211,
        "blocks": 12_288,
    }


async def test_looking_keeps_views_coming_even_before_the_first(serve: Serve) -> None:
    desk = FakeDesk()
    it = serve(desk)
    for looks in (1, 2):
        assert (await it.client.get("/timeline/live")).json() == {"view": None}
        assert desk.watched == looks


# ---------------------------------------------------------------- recordings


@pytest.mark.parametrize(
    ("how", "file"),
    [
        ({}, ""),
        ({"json": {}}, ""),
        ({"json": {"file": None}}, ""),
        ({"json": {"file": ""}}, ""),
        ({"json": {"file": "a run.json.gz"}}, "a run.json.gz"),
        ({"json": {"file": "größer.json"}}, "größer.json"),
        ({"json": {"file": "x" * (MOST_NAME_BYTES - 8) + ".json.gz"}}, "x" * (MOST_NAME_BYTES - 8) + ".json.gz"),
    ],
    ids=["no body", "empty object", "null", "empty name", "name", "another alphabet", "longest name"],
)
async def test_a_recording_starts_with_or_without_a_name(serve: Serve, how: dict[str, Any], file: str) -> None:
    desk = FakeDesk()
    answer = await serve(desk).client.post("/timeline/start", **how)
    assert answer.status_code == 200, answer.text
    (asked,) = desk.asked
    assert isinstance(asked, StartTimeline)
    assert asked.file == file
    state = answer.json()
    assert state.keys() == {"recording", "file", "seconds", "spans", "bytes", "problem"}
    assert state["recording"] is True
    assert state["file"] == file or (not file and state["file"])
    assert state["problem"] is None


async def test_start_status_stop_tell_of_the_same_recording(serve: Serve) -> None:
    desk = FakeDesk()
    it = serve(desk)
    assert (await it.client.get("/timeline/status")).json() == {
        "recording": False, "file": None, "seconds": 0.0, "spans": 0, "bytes": 0, "problem": None,
    }  # fmt: skip
    await it.client.post("/timeline/start", json={"file": "a.json.gz"})
    told = [(await it.client.get("/timeline/status")).json(), (await it.client.post("/timeline/stop")).json()]
    assert [(state["recording"], state["file"]) for state in told] == [(True, "a.json.gz"), (False, "a.json.gz")]
    assert [type(message) for message in desk.asked] == [AskTimeline, StartTimeline, AskTimeline, StopTimeline]


async def test_starting_twice_and_stopping_twice_are_conflicts(serve: Serve) -> None:
    it = serve(FakeDesk())
    assert error_of(await it.client.post("/timeline/stop"), 409)["message"] == "nothing is being recorded"
    assert (await it.client.post("/timeline/start", json={"file": "a.json.gz"})).status_code == 200
    error = error_of(await it.client.post("/timeline/start"), 409)
    assert error["message"] == "a.json.gz is being recorded already"
    assert (error["type"], error["code"]) == ("invalid_request_error", "timeline_conflict")
    assert (await it.client.post("/timeline/stop")).status_code == 200
    error_of(await it.client.post("/timeline/stop"), 409)
    assert (await it.client.get("/timeline/status")).json()["file"] == "a.json.gz"


async def test_why_a_recording_ended_by_itself_is_told(serve: Serve) -> None:
    desk = FakeDesk()
    desk.problem = "the disk is full"
    assert (await serve(desk).client.get("/timeline/status")).json()["problem"] == "the disk is full"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("../x.json.gz", "plain name"),
        ("/etc/x.json.gz", "plain name"),
        ("a\\b.json.gz", "plain name"),
        (".hidden.json.gz", "plain name"),
        (".json.gz", "plain name"),
        ("a\x00b.json.gz", "plain name"),
        ("a\nb.json.gz", "plain name"),
        ("x" * (MOST_NAME_BYTES - 7) + ".json.gz", "201 bytes, at most 200"),
        ("ö" * 100 + ".json.gz", "208 bytes, at most 200"),
        ("x.txt", "must end with .json"),
        ("x", "must end with .json"),
        (5, "must be a string"),
        (False, "must be a string"),
        (["x.json.gz"], "must be a string"),
    ],
)
async def test_a_name_that_is_none_is_refused_before_anybody_is_asked(serve: Serve, file: object, text: str) -> None:
    desk = FakeDesk()
    error = error_of(await serve(desk).client.post("/timeline/start", json={"file": file}), 400)
    assert error["message"].startswith("file: ")
    assert text in error["message"]
    assert error["param"] == "file"
    assert desk.asked == []


@pytest.mark.parametrize(
    ("how", "status", "text"),
    [
        ({"json": {"folder": "x"}}, 400, '"folder" is unknown; only file may be given'),
        ({"json": ["a.json.gz"]}, 400, "the body must be a JSON object"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "not valid JSON"),
        ({"content": b'{"file": "a.json"}'}, 400, "content-type: application/json"),
        ({"json": {"file": "x" * 5000}}, 413, "larger than the 0.001 MiB"),
    ],
    ids=["unknown name", "a list", "broken", "no type", "too large"],
)
async def test_a_body_that_can_not_be_meant_is_refused(
    serve: Serve, how: dict[str, Any], status: int, text: str
) -> None:
    desk = FakeDesk()
    it = serve(desk, config=ServeConfig(max_body_mib=0.001))
    assert text in error_of(await it.client.post("/timeline/start", **how), status)["message"]
    assert desk.asked == []


@CONTROL
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_controls_no_recording(serve: Serve, path: str, site: str) -> None:
    desk = FakeDesk()
    it = serve(desk)
    error_of(await it.client.post(path, headers={"sec-fetch-site": site}), 403)
    assert desk.asked == []


@CONTROL
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://192.168.0.7:8001", "http://192.168.0.7", "https://192.168.0.78000", "null"],
)
async def test_a_page_of_another_origin_controls_no_recording_where_browsers_do_not_name_its_site(
    serve: Serve, path: str, origin: str
) -> None:
    desk = FakeDesk()
    it = serve(desk)
    error_of(await it.client.post(path, headers={"host": "192.168.0.7:8000", "origin": origin}), 403)
    assert desk.asked == []


@CONTROL
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://192.168.0.7:8000"},
        {"origin": "http://big-machine:8000", "host": "Big-Machine:8000"},
        {"origin": "https://llm.example", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
    ids=["no browser", "its own page", "by name", "behind a proxy", "by hand"],
)
async def test_the_servers_own_page_and_other_programs_control_recordings(
    serve: Serve, path: str, headers: dict[str, str]
) -> None:
    desk = FakeDesk()
    it = serve(desk)
    if path.endswith("stop"):
        await it.client.post("/timeline/start")
    answer = await it.client.post(path, headers={"host": "192.168.0.7:8000"} | headers)
    assert answer.status_code == 200, answer.text


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize(("name", "kind"), [("a run.json.gz", "application/gzip"), ("größer.json", "application/json")])
async def test_the_last_recording_can_be_fetched_when_it_has_ended(
    serve: Serve, tmp_path: Path, name: str, kind: str
) -> None:
    it = serve(FakeDesk(folder=tmp_path))
    error = error_of(await it.client.get("/timeline/file"), 404)
    assert error["message"] == "nothing was recorded yet"
    await it.client.post("/timeline/start", json={"file": name})
    error = error_of(await it.client.get("/timeline/file"), 409)
    assert error["message"] == f"{tmp_path / name} is still being recorded"
    await it.client.post("/timeline/stop")
    answer = await it.client.get("/timeline/file")
    assert answer.status_code == 200
    assert answer.content == RECORDED
    assert answer.headers["content-type"] == kind
    assert answer.headers["content-length"] == str(len(RECORDED))
    assert answer.headers["content-disposition"].startswith("attachment; filename")
    assert quote(name) in answer.headers["content-disposition"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("instead", ["nothing", "a folder", "a pipe"])
async def test_a_recording_that_is_not_here_is_missed_in_words(serve: Serve, tmp_path: Path, instead: str) -> None:
    it = serve(FakeDesk(folder=tmp_path))
    await it.client.post("/timeline/start", json={"file": "a.json"})
    await it.client.post("/timeline/stop")
    (tmp_path / "a.json").unlink()
    if instead == "a folder":
        (tmp_path / "a.json").mkdir()
    elif instead == "a pipe":
        os.mkfifo(tmp_path / "a.json")
    error = error_of(await it.client.get("/timeline/file"), 404)
    assert error["message"].startswith(f"{tmp_path / 'a.json'} cannot be read here: it is gone, or the collector ")


@pytest.mark.parametrize("method_path", ["GET status", "GET file", "POST start", "POST stop"])
async def test_without_a_collector_there_is_one_clear_line(serve: Serve, method_path: str) -> None:
    it = serve(FakeDesk(collector=False))
    method, path = method_path.split()
    answer = await it.client.request(method, f"/timeline/{path}")
    assert error_of(answer, 503)["message"] == "no timeline collector answers"
    assert answer.headers["retry-after"] == "1"
    assert (await it.client.get("/timeline/live")).json() == {"view": None}


@pytest.mark.parametrize(
    "method_path", ["POST live", "POST status", "POST file", "GET start", "GET stop", "POST page/main.js"]
)
async def test_a_wrong_method_is_said_to_be_one(serve: Serve, method_path: str) -> None:
    method, path = method_path.split()
    error_of(await serve(FakeDesk()).client.request(method, f"/timeline/{path}"), 405)
