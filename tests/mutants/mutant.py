"""What a mutant is."""

from __future__ import annotations

import attrs


@attrs.frozen
class Mutant:
    """The package with one thing broken, and the test that must notice.

    Args:
        rule: The rule that is broken.
        breaks: What is broken, in a few words.
        file: The file under `trio_alarms/`.
        old: The text that is replaced; it must be in the file exactly once.
        new: What stands there instead.
        test: The node id, below `tests/`, of the test that must fail.
        error: What the test must fail with, where that is not an assertion of its own.
        hangs: Whether running into the time limit is how the test notices.
    """

    rule: str
    breaks: str
    file: str
    old: str
    new: str
    test: str
    error: str = "AssertionError"
    hangs: bool = False

    def applied(self, source: str) -> str:
        """The file's text with the patch applied.

        Raises:
            ValueError: The patch does not apply exactly once, or leaves what is no Python.
        """
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"its old text is in {self.file} {found} times, not once")
        broken = source.replace(self.old, self.new)
        try:
            compile(broken, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.file} is no Python once it is patched: {error}") from error
        return broken
