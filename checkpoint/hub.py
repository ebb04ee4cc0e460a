"""Models by their name on the Hugging Face Hub: what is needed of a repository, in its library's own cache.

The library is imported only when somebody asks for a name. It goes by HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, HF_ENDPOINT
and the rest of its variables, so that what transformers or vLLM have fetched is found, and shows its own bars.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from checkpoint.errors import CheckpointError, first_line
from checkpoint.unreadable import refuse_split

_NAME = re.compile(r"([a-zA-Z0-9][\w.-]*/[a-zA-Z0-9][\w.-]*)(?::([\w.-]+\.gguf))?", re.ASCII)
_FILES = (".gguf", ".safetensors", ".bin", ".pth", ".pt", ".json")

_TEXT = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_WEIGHTS = ["*.safetensors"]
_NOT = ["*/*", "consolidated*"]
"""What repositories hold beside a model in transformers' format: the same weights again, in other layouts."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub, `org/name`, or one GGUF file in it, `org/name:file.gguf`."""

    repo: str
    file: str | None


def hub_name(model: str) -> HubName | None:
    """Return what `model` would name on the hub, None if it can only be a path."""
    found = _NAME.fullmatch(model)
    if found is None or ".." in model or "--" in model or found[1].endswith(_FILES):
        return None
    return HubName(found[1], found[2])


def fetch(
    name: HubName,
    revision: str | None,
    tell: Callable[[str], None],
    *,
    weights: bool,
    check: Callable[[Path], object],
) -> Path:
    """Return the cached folder of a repository, or the cached GGUF file in it, once all that is needed is there.

    Without `weights` a folder holds configuration and tokenizer. `check` gets the folder as soon as these are there:
    what it raises spares the user the download of the rest. Where the hub cannot be reached, what the cache holds is
    used, and `tell` says so. Raises `CheckpointError`; a broken download goes on where it stopped when asked again.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    with _signals_end_us():
        try:
            info = HfApi(library_name="stepahead").model_info(
                name.repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT, files_metadata=True
            )
        except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise _refusal(error, name, revision) from error
        except Exception as error:  # the library lets its HTTP client's errors through, and not always the same client
            return _from_cache(name, revision, tell, error, weights=weights)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if not _matches(file.rfilename, _NOT)}
        gguf = _gguf_file(name, list(sizes))

        def load(patterns: list[str], revision: str | None) -> Path:
            missing = _missing(name.repo, info.sha, [file for file in sizes if _matches(file, patterns)])
            if size := sum(sizes[file] for file in missing):
                tell(f"fetching {name.repo} from the hub: {size / 1e9:.2f} GB")
            try:
                return Path(
                    snapshot_download(name.repo, revision=revision, allow_patterns=patterns, ignore_patterns=_NOT)
                )
            except Exception as error:
                raise _refusal(error, name, revision) from error

        if gguf is not None:
            return load([gguf], revision) / gguf
        if not sizes.keys() & {"config.json", "adapter_config.json"}:  # an adapter's is for `check` to explain
            raise CheckpointError(f"{name.repo}: the repository has no config.json, so it holds no model that is read")
        folder = load(_TEXT, revision)
        check(folder)
        if weights and not any(_matches(file, _WEIGHTS) for file in sizes):
            raise CheckpointError(f"{name.repo}: the repository has no weights as .safetensors or .gguf")
        # The folder is named after the commit: the weights are those of the same one, whatever was pushed meanwhile.
        return load([*_TEXT, *_WEIGHTS], folder.name) if weights else folder


def _gguf_file(name: HubName, files: list[str]) -> str | None:
    """Return which GGUF file is meant, None if the repository's model is a folder."""
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    some = f"{', '.join(ggufs[:20])}{', …' if len(ggufs) > 20 else ''}"
    if name.file is not None:
        if name.file not in ggufs:
            raise CheckpointError(f"{name.repo}: the repository has no {name.file}; it has {some or 'no .gguf file'}")
        refuse_split([name.file])
        return name.file
    if not ggufs or any(_matches(file, _WEIGHTS) for file in files):
        return None
    refuse_split(ggufs)
    if len(ggufs) > 1:
        raise CheckpointError(f"{name.repo}: holds several .gguf files; name one as {name.repo}:FILE, of {some}")
    return ggufs[0]


def _missing(repo: str, commit: str | None, files: list[str]) -> list[str]:
    from huggingface_hub import try_to_load_from_cache

    return [file for file in files if not isinstance(try_to_load_from_cache(repo, file, revision=commit), str)]


def _matches(file: str, patterns: list[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _from_cache(
    name: HubName, revision: str | None, tell: Callable[[str], None], unreachable: Exception, *, weights: bool
) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(unreachable, OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE keeps us from asking the hub"
    else:
        why = f"the hub at {constants.ENDPOINT} cannot be reached ({first_line(unreachable)})"
    patterns = [*_TEXT, *(_WEIGHTS if weights else [])] if name.file is None else [name.file]
    try:
        folder = Path(
            snapshot_download(
                name.repo, revision=revision, allow_patterns=patterns, ignore_patterns=_NOT, local_files_only=True
            )
        )
    except Exception as error:
        which = name.repo if revision is None else f"revision {revision} of {name.repo}"
        raise CheckpointError(
            f"{name.repo}: no such file or folder, and {why}; the cache in {constants.HF_HUB_CACHE} does not hold what "
            f"is needed of {which}"
        ) from error
    tell(f"{why}: using what the cache holds of {name.repo}")
    return folder if name.file is None else folder / name.file


def _refusal(error: Exception, name: HubName, revision: str | None) -> CheckpointError:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    repo = name.repo
    if isinstance(error, GatedRepoError):  # which is a RepositoryNotFoundError, too
        return CheckpointError(
            f"{repo}: is only for those who have accepted its terms: do so at {constants.ENDPOINT}/{repo}, and log in "
            "(`hf auth login`, or HF_TOKEN)"
        )
    if isinstance(error, RepositoryNotFoundError):
        return CheckpointError(
            f"{repo}: no such file or folder, and the hub has no model of that name (one that is private is shown only "
            "to who has logged in: `hf auth login`, or HF_TOKEN)"
        )
    if isinstance(error, RevisionNotFoundError):
        return CheckpointError(f"{repo}: the hub has no revision {revision or constants.DEFAULT_REVISION} of it")
    return CheckpointError(
        f"{repo}: cannot be fetched from the hub ({first_line(error)}); what has come is kept, the next start goes on "
        "from there"
    )


@contextmanager
def _signals_end_us() -> Iterator[None]:
    """Let signals that ask this process to end do so at once, as long as the library's threads can't be called off.

    Nothing is lost by it: half a file waits in the cache for the next start.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
