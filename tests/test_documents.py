"""What the documents name must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *[str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")]]
EXAMPLES = ("/", "path/", "org/")
FILES = re.compile(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml))`")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    named = [name for name in FILES.findall((ROOT / document).read_text()) if not name.startswith(EXAMPLES)]
    assert named or document.startswith("docs/")
    assert [name for name in named if not _is_there(name)] == []


def test_the_readmes_table_has_every_option_of_launch_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.main(["--help"])
    there = set(re.findall(r"^  --(?:[\w-]+, --no-)?([\w-]+)", capsys.readouterr().out, re.MULTILINE))
    section = (ROOT / "README.md").read_text().partition("\n## Options\n")[2].partition("\n#")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `--")]
    named = [name for row in rows for name in re.findall(r"`--(?:no-)?([\w-]+)`", row)]
    assert sorted(named) == sorted(there)


def _is_there(name: str) -> bool:
    """Whether a path exists, or a bare name in any folder of ours."""
    folders = [ROOT, *(path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))]
    return (ROOT / name).exists() or ("/" not in name and any((folder / name).exists() for folder in folders))
