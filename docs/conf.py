"""Sphinx's configuration. Nothing here needs a network."""

from __future__ import annotations

import inspect
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any, Final

from trio_alarms import DispatchOptions, ScheduleConfiguration, StorageOptions

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "trio_alarms"
author = "The trio_alarms authors"
project_copyright = "2026, The trio_alarms authors"
release = version = installed_version("trio_alarms")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings write `name` for code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = "trio_alarms"

# Values whose every default would be spelled out in a signature that has one as its default.
_SHORTENED: Final = (
    DispatchOptions(),
    ScheduleConfiguration(),
    StorageOptions(),
    StorageOptions(executor="inline"),
)

# An alias of a type has no docstring of its own.
_ALIASES: Final = {
    "trio_alarms.Duration": "A `timedelta`, or a number of seconds.",
    "trio_alarms.FailureAction": "What a failure means; what `on_failure` returns.",
}


def tidy_signature(
    _app: Sphinx,
    _what: str,
    _name: str,
    documented: Any,
    _options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Shorten defaults that are values of ours; say what an async context manager is."""
    for value in _SHORTENED:
        if signature is not None:
            given = 'executor="inline"' if value == _SHORTENED[-1] else ""
            signature = signature.replace(repr(value), f"{type(value).__name__}({given})")
    wrapped = getattr(documented, "__wrapped__", None)
    if returns is not None and inspect.isasyncgenfunction(wrapped):
        returns = returns.replace("AsyncIterator[", "AbstractAsyncContextManager[", 1)
    return signature, returns


def describe_alias(
    _app: Sphinx, _what: str, name: str, _documented: Any, _options: Any, lines: list[str]
) -> None:
    """Give an alias its own words instead of those of `typing`."""
    if name in _ALIASES:
        lines[:] = [_ALIASES[name], ""]


def setup(app: Sphinx) -> None:
    """Take part in how signatures and docstrings are shown."""
    app.connect("autodoc-process-signature", tidy_signature)
    app.connect("autodoc-process-docstring", describe_alias)
