"""An environment for each peer, made once: APScheduler 3 and 4 cannot be in one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from .catalogue import Peer

ROOT: Final = Path(__file__).parents[2]
REQUIREMENTS: Final = Path(__file__).parent / "requirements"
# dura needs 3.13, and all must run on one interpreter to be comparable.
WANTED: Final = (3, 13)

_PROBE: Final = """
import json, platform, sqlite3, sys
from importlib.metadata import version
found = {name: version(name) for name in sys.argv[1:]}
print(json.dumps({"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version, **found}))
"""


@attrs.frozen
class Environment:
    """Where a peer is installed, or why it is not.

    Attributes:
        peer: Which.
        python: Its interpreter; `None` if it could not be installed.
        versions: What it runs on.
        reason: Why it could not be installed.
    """

    peer: Peer
    python: Path | None
    versions: dict[str, str]
    reason: str | None = None


def find_python() -> Path:
    """A Python 3.13, if there is one, else the newest at hand."""
    for candidate in _candidates():
        if version_of(candidate)[:2] >= WANTED:
            return candidate
    return Path(sys.executable)


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    name = f"python{WANTED[0]}.{WANTED[1]}"
    if found := shutil.which(name):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(pyenv.glob(f"{WANTED[0]}.{WANTED[1]}.*/bin/{name}"))


def version_of(python: Path) -> tuple[int, ...]:
    """The version of an interpreter; empty where it does not run, as a pyenv shim may not."""
    command = [str(python), "-c", "import sqlite3, sys; print(*sys.version_info[:3])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ()
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def make(peer: Peer, python: Path, folder: Path) -> Environment:
    """Install a peer, unless the same was installed there before."""
    requirements = REQUIREMENTS / f"{peer.module}.txt"
    made_of = f"{python} {version_of(python)} {requirements.read_text('utf-8')}"
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    place = folder / f"{peer.module}-{digest}"
    mark = place / "installed"
    inside = place / "bin" / "python"
    if not mark.exists():
        shutil.rmtree(place, ignore_errors=True)
        made = _run([str(python), "-m", "venv", str(place)])
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = (
            _run([str(inside), *install, "-r", str(requirements)]) if made.returncode == 0 else made
        )
        if done.returncode:
            return Environment(peer, None, {}, f"does not install: {why(done.stderr)}")
        mark.touch()
    probed = _run([str(inside), "-c", _PROBE, *peer.distributions])
    if probed.returncode:
        return Environment(peer, None, {}, f"does not start: {why(probed.stderr)}")
    return Environment(peer, inside, json.loads(probed.stdout))


def why(stderr: str) -> str:
    """The line of an error output that says most: which Python is needed, or the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("WARNING", "[notice]"))]
    needed = [line for line in lines if "Requires-Python" in line]
    return (needed or lines or ["no reason given"])[0 if needed else -1][:200]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
