"""A model is asked for by its name on the hub: what is fetched, what is not, and what is said when it cannot be."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint.hub import HubName, hub_name
from tests.fake_hub import ROOT, FakeHub, fake_hub
from tests.tiny_gguf import write_gguf
from tests.tiny_models import change_json, save, tiny_model
from tests.tiny_tokenizers import byte_level_tokenizer

pytestmark = pytest.mark.processes


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        folder = save(tiny_model("grouped queries"), tmp_path / "repository")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "chat_template.jinja").write_text("{{ messages }}")
        (folder / "README.md").write_text("# not needed")
        (folder / "pytorch_model.bin").write_bytes(b"not needed")
        shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
        (folder / "original").mkdir()
        shutil.copy(folder / "model.safetensors", folder / "original" / "model.safetensors")
        hub.repositories["tiny/llama"] = folder
        yield hub


def test_what_is_needed_is_fetched_once_and_kept_in_the_librarys_cache(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (found, told), again = hub.ask(home, {"model": "tiny/llama"}, {"model": "tiny/llama"})
    assert Path(found) == home / "hub" / "models--tiny--llama" / "snapshots" / hub.commit("tiny/llama")
    assert {file.name for file in Path(found).rglob("*")} == {
        "config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors",
    }  # fmt: skip
    assert sorted(hub.sent()) == sorted(file.name for file in Path(found).iterdir())
    assert [line.partition(":")[0] for line in told] == ["fetching tiny/llama from the hub"] * 2, "text, then weights"
    assert again == (found, [])


def test_whoever_needs_no_weights_fetches_none(hub: FakeHub, tmp_path: Path) -> None:
    ((found, _),) = hub.ask(tmp_path / "home", {"model": "tiny/llama", "need_weights": False})
    assert "model.safetensors" not in hub.sent()
    assert (Path(found) / "tokenizer.json").is_file()


def test_a_model_that_cannot_be_served_costs_no_download_of_its_weights(hub: FakeHub, tmp_path: Path) -> None:
    change_json(hub.repositories["tiny/llama"] / "config.json", quantization_config={"quant_method": "gptq"})
    ((found, _),) = hub.ask(tmp_path / "home", {"model": "tiny/llama"})
    assert "quantisation gptq is not supported" in found
    assert "model.safetensors" not in hub.sent()


def test_a_model_without_the_tokenizer_that_is_needed_costs_no_download_of_its_weights(
    hub: FakeHub, tmp_path: Path
) -> None:
    (hub.repositories["tiny/llama"] / "tokenizer.json").unlink()
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "launch.py", "--no-http", "--model=tiny/llama", f"--zmq=ipc://{tmp_path / 'clients'}"],
        cwd=ROOT, env=hub.environment(home), capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 2
    assert "has no tokenizer.json" in done.stderr
    assert "model.safetensors" not in hub.sent()
    ((found, _),) = hub.ask(home, {"model": "tiny/llama"})
    assert (Path(found) / "model.safetensors").is_file(), "a worker needs none"


def test_without_a_hub_what_the_cache_holds_is_served(hub: FakeHub, tmp_path: Path) -> None:
    home, ask = tmp_path / "home", {"model": "tiny/llama"}
    ((found, _),) = hub.ask(home, ask)
    ((offline, told),) = hub.ask(home, ask, HF_HUB_OFFLINE="1")
    assert (offline, told) == (
        found,
        ["HF_HUB_OFFLINE keeps us from asking the hub: using what the cache holds of tiny/llama"],
    )
    ((away, told),) = hub.ask(home, ask, HF_ENDPOINT="http://127.0.0.1:9")
    assert away == found
    assert "the hub at http://127.0.0.1:9 cannot be reached" in told[0]


def test_what_went_wrong_is_said_in_one_line(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    hub.repositories["tiny/gated"] = hub.repositories["tiny/llama"]
    pickled = hub.repositories["tiny/pickled"] = Path(shutil.copytree(hub.repositories["tiny/llama"], tmp_path / "old"))
    for file in pickled.rglob("*.safetensors"):
        file.unlink()
    bare = hub.repositories["tiny/bare"] = Path(shutil.copytree(hub.repositories["tiny/llama"], tmp_path / "bare"))
    for file in bare.rglob("*.json"):
        file.unlink()
    (tmp_path / "adapter").mkdir()
    adapter = hub.repositories["tiny/adapter"] = tmp_path / "adapter"
    change_json(adapter / "adapter_config.json", base_model_name_or_path="tiny/llama")
    hub.gated.add("tiny/gated")
    answers = hub.ask(
        home,
        {"model": "tiny/unknown"},
        {"model": "tiny/llama", "revision": "v9"},
        {"model": "tiny/gated"},
        {"model": "tiny/pickled"},
        {"model": "tiny/bare"},
        {"model": "tiny/adapter"},
        {"model": str(hub.repositories["tiny/llama"]), "revision": "main"},
    )
    answers += hub.ask(home, {"model": "tiny/llama"}, HF_HUB_OFFLINE="1")
    answers += hub.ask(home, {"model": "tiny/llama"}, HF_ENDPOINT="http://127.0.0.1:9")
    for (found, _), words in zip(
        answers,
        [
            "tiny/unknown: no such file or folder, and the hub has no model of that name",
            "tiny/llama: the hub has no revision v9 of it",
            "tiny/gated: is only for those who have accepted its terms",
            "tiny/pickled: the repository has no weights as .safetensors or .gguf",
            "tiny/bare: the repository has no config.json",
            f"{home}/hub/models--tiny--adapter/snapshots/{hub.commit('tiny/adapter')}: holds an adapter, not a model",
            "--revision main: only models from the hub",
            "tiny/llama: no such file or folder, and HF_HUB_OFFLINE keeps us from asking the hub; the cache in",
            "tiny/llama: no such file or folder, and the hub at http://127.0.0.1:9 cannot be reached (",
        ],
        strict=True,
    ):
        assert found.startswith(f"error: {words}")
        assert found.isprintable()


def test_a_revision_is_the_one_that_was_named(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.commit("tiny/llama")
    ((found, _),) = hub.ask(tmp_path / "home", {"model": "tiny/llama", "revision": commit})
    assert Path(found).name == commit
    assert f"GET /api/models/tiny/llama/revision/{commit}" in hub.asked


def test_a_hub_that_says_nothing_is_not_waited_for(hub: FakeHub, tmp_path: Path) -> None:
    hub.silent.set()
    began = time.monotonic()
    ((found, _),) = hub.ask(tmp_path / "home", {"model": "tiny/llama"})
    assert "cannot be reached" in found
    assert time.monotonic() - began < 30, "the hub sleeps for 40 s"
    assert hub.asked.count("GET /api/models/tiny/llama") == 1


def test_one_gguf_file_is_fetched_and_of_several_the_one_that_was_named(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "ggufs"
    folder.mkdir()
    write_gguf(tiny_model("grouped queries"), folder / "tiny.Q8_0.gguf", "llama", "Q8_0")
    hub.repositories["tiny/one"] = folder
    shutil.copy(hub.repositories["tiny/llama"] / "config.json", folder)  # as some publishers have it
    several = hub.repositories["tiny/several"] = Path(shutil.copytree(folder, tmp_path / "several"))
    shutil.copy(several / "tiny.Q8_0.gguf", several / "tiny.Q4_0.gguf")
    one, named, unnamed, unknown = hub.ask(
        tmp_path / "home",
        {"model": "tiny/one"},
        {"model": "tiny/several:tiny.Q4_0.gguf"},
        {"model": "tiny/several"},
        {"model": "tiny/several:tiny.Q2_K.gguf"},
    )
    assert Path(one[0]).name == "tiny.Q8_0.gguf"
    assert Path(named[0]).name == "tiny.Q4_0.gguf"
    assert hub.sent() == ["tiny.Q8_0.gguf", "tiny.Q4_0.gguf"]
    assert "name one as tiny/several:FILE, of tiny.Q4_0.gguf, tiny.Q8_0.gguf" in unnamed[0]
    assert "the repository has no tiny.Q2_K.gguf; it has tiny.Q4_0.gguf, tiny.Q8_0.gguf" in unknown[0]


def test_ctrl_c_ends_a_download_at_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.silent.set()
    command = [sys.executable, "launch.py", "--no-http", "--model=tiny/llama", f"--zmq=ipc://{tmp_path / 'clients'}"]
    environment = hub.environment(tmp_path / "home", HF_HUB_ETAG_TIMEOUT="30")
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not hub.asked:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(2) == -signal.SIGINT
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_the_launcher_fetches_once_for_all_its_parts_and_serves_under_the_hubs_name(
    hub: FakeHub, tmp_path: Path
) -> None:
    folder = save(tiny_model("grouped queries", vocab_size=340), tmp_path / "spoken")
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    hub.repositories["tiny/spoken"] = folder
    command = ["launch.py", "--model=tiny/spoken", "--workers=2", "--prompt=hello", "--max-tokens=3", "--device=cpu"]
    done = subprocess.run(
        [sys.executable, *command, "--max-num-seqs=2"],
        cwd=ROOT, env=hub.environment(tmp_path / "home"), capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert hub.sent().count("model.safetensors") == 1
    for worker in (0, 1):
        assert f"worker {worker}: loading tiny/spoken in float32\n" in done.stderr


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("org/name", HubName("org/name", None)),
        ("Org-1/a_b.c-7B", HubName("Org-1/a_b.c-7B", None)),
        ("org/name:file.Q4_K_M.gguf", HubName("org/name", "file.Q4_K_M.gguf")),
        ("name", None),
        ("./org/name", None),
        ("/org/name", None),
        ("~/name", None),
        ("org/name/", None),
        ("a/b/c", None),
        ("../name", None),
        ("org/..", None),
        ("models/file.gguf", None),
        ("models/model.safetensors", None),
        ("org/name:tag", None),
        ("org/name:../file.gguf", None),
        ("org/na me", None),
        ("", None),
    ],
)
def test_only_what_looks_like_one_is_taken_for_a_name_on_the_hub(model: str, name: HubName | None) -> None:
    assert hub_name(model) == name
