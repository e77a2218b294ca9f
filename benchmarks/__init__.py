"""The benchmark: what trio_alarms costs, beside references that do as little as can be done.

Run it with `python -m benchmarks`, or `nox -s bench`; docs/explanation/performance.md says what is
measured, and how. `references` holds what it is compared with, and imports nothing of ours.
"""
