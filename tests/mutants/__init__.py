"""Mutants: the package with one thing broken, each of which one named test must notice.

`nox -s mutants`, or `python -m tests.mutants [word ...]` for those that a word is in.
"""
