"""Sphinx's configuration. Nothing here needs a network."""

from __future__ import annotations

from importlib.metadata import version as installed_version

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
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = "trio_alarms"
