"""The machine and the software that the figures hold for."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")


def describe_machine(file_system: str) -> dict[str, str]:
    """What a reader needs to tell this machine from theirs."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": file_system,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "Trio": version("trio"),
        "trio_alarms": version("trio_alarms"),
    }


def _cpu_model() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
