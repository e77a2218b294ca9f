"""A child whose disk stops syncing in the middle: the kernel itself refuses, nothing is installed.

Run as `python -m tests.crash.failing_syncs <database> <alarm|application> <once|always>`. It
prints the outcome of one commit and kills itself, so that nothing is tidied up later.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import trio

from trio_alarms import AlarmHost, StorageOperationError, StorageOptions, open_host

# The numbers of fsync and fdatasync.
SYNC_CALLS: Final = {"x86_64": (74, 75), "aarch64": (82, 83)}

_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def fail_syncs() -> None:
    """From now on every fsync and fdatasync of this thread fails with EIO, until it ends."""
    fsync, fdatasync = SYNC_CALLS[platform.machine()]
    instructions = [
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_EQUAL, 1, 0, fsync),
        (_JUMP_IF_EQUAL, 0, 1, fdatasync),
        (_RETURN, 0, 0, _FAIL | errno.EIO),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    program = _Program(len(instructions), ctypes.cast(buffer, ctypes.c_void_p))
    library = ctypes.CDLL(None, use_errno=True)
    if (
        library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        or library.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0
    ):
        print("no seccomp", flush=True)
        os._exit(0)


def fail_next_commit(host: AlarmHost) -> None:
    """The next commit's syncs fail, in a thread of its own; those after it do not."""
    writer = host._runtime.database.writer
    commit = writer.commit

    def fail_once() -> None:
        writer.commit = commit  # type: ignore[method-assign]  # as it was
        with ThreadPoolExecutor(1, initializer=fail_syncs) as executor:
            executor.submit(commit).result()

    writer.commit = fail_once  # type: ignore[method-assign]  # for one call


async def commit(host: AlarmHost, what: str) -> None:
    """Commit one thing that was not there before."""
    if what == "alarm":
        await host.scheduler.schedule_alarm("doubtful", "1", after=1000)
    else:
        async with host.storage.transaction() as tx:
            await tx.execute("INSERT INTO items VALUES ('doubtful')")


async def found(host: AlarmHost) -> int:
    """How much of it is there."""
    alarms = [record.ref.tag for record in await host.scheduler.list_alarms()]
    return alarms.count("doubtful") + len(await host.storage.query("SELECT * FROM items"))


async def run(database: str, what: str, how_often: str) -> None:
    """Commit while nothing can be synced, and die."""
    # Inline: the filter is the thread's.
    options = StorageOptions(executor="inline")
    async with open_host(database, driver=False, storage=options) as host:
        async with host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE items (id TEXT)")
        await host.scheduler.schedule_alarm("before", "1", after=1000)
        if how_often == "once":
            fail_next_commit(host)
        else:
            fail_syncs()
        outcome = "committed"
        try:
            await commit(host, what)
        except StorageOperationError as error:
            outcome = error.outcome
        print(f"{outcome}, {await found(host)} found", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    trio.run(run, *sys.argv[1:])
