"""The failure table of docs/transport.md: every cell names a test, and every test it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_cell_names_a_test_that_exists() -> None:
    section = (ROOT / "docs/transport.md").read_text().partition("## What happens when")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|")[1:] for line in section.splitlines() if line.startswith("| ")]
    cells = [cell for row in rows[2:] for cell in row]
    assert len(cells) == 27
    for cell in cells:
        assert re.search(r"`|the same|the (latter|former)", cell), cell
    named = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", re.sub(r"`[^`]*`", "", section)))
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "rust/core").rglob("*.rs")]
    text = "\n".join(path.read_text() for path in sources)
    # A storm's name is made into a test by a macro.
    missing = [name for name in sorted(named) if not re.search(rf"\b(fn|def) {name}\(|^ +{name}: ", text, re.MULTILINE)]
    assert missing == []
    assert len(named) > 30
