"""Prose of Markdown files and comments of Rust files have at most 120 columns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 120
MARKDOWN = [
    *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benches").rglob("*.md")
]  # fmt: skip


def too_long_of_markdown(text: str) -> list[str]:
    """Lines that could be broken: none of tables, recorded output and commands."""
    found, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if len(line) > MOST and " " in line.strip() and not fenced and not line.startswith(("|", "    ")):
            found.append(line)
    return found


def too_long_of_rust(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > MOST and re.match(r"\s*//[/!]? (?![|])", line)]


@pytest.mark.parametrize("file", MARKDOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_markdown_is_wrapped(file: Path) -> None:
    assert not too_long_of_markdown(file.read_text(encoding="utf-8"))


def test_tables_of_figures_are_those_of_the_reports() -> None:
    done = subprocess.run([sys.executable, ROOT / "benches" / "readme.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_comments_of_rust_are_wrapped() -> None:
    long = {file: too_long_of_rust(file.read_text(encoding="utf-8")) for file in (ROOT / "rust").rglob("*.rs")}
    assert not {str(file.relative_to(ROOT)): lines for file, lines in long.items() if lines}


def test_a_long_line_is_seen() -> None:
    assert too_long_of_markdown("a " * 70)
    assert not too_long_of_markdown("| " + "a " * 70)
    assert not too_long_of_markdown("```\n" + "a " * 70 + "\n```")
    assert too_long_of_rust("    // " + "a " * 70)
