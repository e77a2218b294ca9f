"""trio_alarms beside what users would pick instead, each in its own environment and process.

`python -m benchmarks.peers` measures; the adapters (`ours`, `apscheduler3`, …) are the scripts that
it runs in the peers' environments. They import their peer, the standard library and `child`.
"""
