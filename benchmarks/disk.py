"""The disk that a benchmark runs on: refusing what is none, and how long it takes to be durable."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Final

import attrs

MEMORY_FILE_SYSTEMS: Final = frozenset({"ramfs", "tmpfs"})
MOUNTS: Final = Path("/proc/mounts")

_PROBES: Final = 60
_BLOCK_BYTES: Final = 4096


class NoDiskError(Exception):
    """The folder lies in memory, where being durable costs nothing."""


@attrs.frozen
class Mount:
    """A mounted file system: where, and of which type."""

    point: str
    type: str


def parse_mounts(text: str) -> list[Mount]:
    """The mounts that the text of `/proc/mounts` lists, in its order."""
    fields = [line.split() for line in text.splitlines()]
    return [Mount(_unescaped(each[1]), each[2]) for each in fields if len(each) > 2]


def file_system_of(folder: Path, mounts: list[Mount]) -> str:
    """The type of the file system that holds a folder; of several on one point, the last."""
    path = folder.resolve()
    holding = [mount for mount in mounts if path.is_relative_to(mount.point)]
    if not holding:
        return "unknown"
    longest = max(len(mount.point) for mount in holding)
    return next(mount.type for mount in reversed(holding) if len(mount.point) == longest)


def read_mounts() -> list[Mount]:
    """The mounts of this machine; none where it does not list them in `/proc`."""
    return parse_mounts(MOUNTS.read_text("utf-8")) if MOUNTS.exists() else []


def require_disk(folder: Path, mounts: list[Mount]) -> str:
    """The type of the folder's file system.

    Raises:
        NoDiskError: It is one in memory.
    """
    kind = file_system_of(folder, mounts)
    if kind in MEMORY_FILE_SYSTEMS:
        raise NoDiskError(
            f"{folder} is on {kind}, where a commit costs nothing, so no figure would mean"
            " anything; name a folder on a disk with --output"
        )
    return kind


def probe(folder: Path) -> float:
    """The median time in µs of writing 4 KiB and waiting until the disk has them."""
    path = folder / "probe"
    block = os.urandom(_BLOCK_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        return statistics.median(_durable_write(descriptor, block) for _ in range(_PROBES))
    finally:
        os.close(descriptor)
        path.unlink()


def _durable_write(descriptor: int, block: bytes) -> float:
    begin = time.perf_counter()
    os.pwrite(descriptor, block, 0)
    # Where there is no fdatasync (macOS), the whole of it.
    getattr(os, "fdatasync", os.fsync)(descriptor)
    return (time.perf_counter() - begin) * 1e6


def _unescaped(field: str) -> str:
    r"""A field of `/proc/mounts`, where a space is written `\040`."""
    return field.encode().decode("unicode_escape")
