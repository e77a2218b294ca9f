"""Every place that silences a tool says why."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("trio_alarms", "tests", "examples", "docs", "benchmarks")

CODES = r"[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*"
ESCAPES = re.compile(
    rf"#\s*(?:noqa:\s*{CODES}|(?:type|pyright):\s*ignore\[[^\]]+\]|pragma:\s*no\s+(?:cover|branch))"
    r"(?P<reason>.*)"
)
BLANKET = re.compile(r"#\s*(?:noqa(?!:)|(?:type|pyright):\s*ignore(?!\[))")
REASON = re.compile(r"\w+\W+\w+")


def comments(path: Path) -> list[tuple[int, str]]:
    """The comments of a file with their line numbers."""
    with tokenize.open(path) as source:
        tokens = list(tokenize.generate_tokens(source.readline))
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def without_reason(comment: str) -> bool:
    """Whether the comment silences a tool and does not say why."""
    match = ESCAPES.search(comment)
    return bool(BLANKET.search(comment)) or (
        match is not None and REASON.search(match["reason"]) is None
    )


def test_every_escape_has_its_reason_on_the_line() -> None:
    """A noqa, a type: ignore or a coverage pragma without a reason hides something."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    bare = [
        f"{path.relative_to(ROOT)}:{line}: {comment}"
        for path in [*paths, ROOT / "noxfile.py"]
        for line, comment in comments(path)
        if without_reason(comment)
    ]
    assert not bare, "\n".join(bare)


def test_escapes_are_told_from_explained_ones() -> None:
    """The check knows each form of escape, with and without a reason."""
    hash_ = "#"
    bare = ["noqa", "noqa: S101", "type: ignore", "type: ignore[misc]", "pragma: no cover"]
    assert all(without_reason(f"{hash_} {escape}") for escape in bare)
    explained = ["noqa: S101 - it asserts", "type: ignore[misc]  # mypy is wrong", "no escape"]
    assert not any(without_reason(f"{hash_} {escape}") for escape in explained)
