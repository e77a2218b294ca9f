"""Compares what a child wrote in its journal with what is in the files after it was killed.

What it knows comes from the rules alone: a one-shot that was committed and whose row is gone was
acknowledged; one that was acknowledged never runs again (R52); an acknowledgement needs a handler
that returned (R28) or a transaction that holds it (R36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from tests.crash.journal import Entry
from tests.crash.snapshot import Key, Snapshot, StoredAlarm
from tests.crash.workload import ACCOUNTS, IN_FLIGHT_MS, OPENING_BALANCE

ONE_SHOTS = frozenset({"plain", "flaky", "pay"})
PROMPT_MS = 1000  # R52 in figures: automatic alarms run within a second of opening
CLOCK_SLACK_MS = 50  # the parent reads its clock a little before or after the child did


@attrs.define
class Figures:
    """What a round of kills amounted to."""

    kills: int = 0
    left_in_peace: int = 0
    committed: int = 0
    not_committed: int = 0
    runs: int = 0
    reruns: int = 0  # of one-shots and repeats, begun and not acknowledged before a kill
    manual_reruns: int = 0  # at the in-flight deadline, after a kill in their handler
    payments: int = 0
    items: int = 0
    automatic_delays_ms: list[int] = attrs.Factory(list)  # from opening, or the later deadline
    manual_delays_ms: list[int] = attrs.Factory(list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.left_in_peace} hosts left in peace,"
            f" {self.committed} committed and {self.not_committed} not, {self.runs} runs,"
            f" {self.reruns} reruns, {self.manual_reruns} manual ones at their in-flight deadline,"
            f" {self.payments} payments, {self.items} items;"
            f" delays from opening: automatic {_spread(self.automatic_delays_ms)},"
            f" manual {_spread(self.manual_delays_ms)}"
        )


def _spread(delays_ms: Sequence[int]) -> str:
    if not delays_ms:
        return "none"
    ordered = sorted(delays_ms)
    return f"{len(ordered)} times, median {ordered[len(ordered) // 2]} ms, at most {ordered[-1]} ms"


class Judge:
    """Holds what is known of all epochs so far; `problems` collects what must not be."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.problems: list[str] = []
        self._before = Snapshot()
        self._committed: set[Key] = set()
        self._not_committed: set[Key] = set()
        self._handled: set[Key] = set()
        self._acknowledged: set[Key] = set()
        self._failures: Counter[Key] = Counter()
        # Of the last run of each alarm: as the epoch goes, and as it was when the epoch began.
        self._scheduled: dict[Key, int] = {}
        self._scheduled_before: dict[Key, int] = {}
        self._ended_before_ms = 0

    def after_epoch(self, entries: Sequence[Entry], now: Snapshot, ended_ms: int) -> None:
        """Judge one epoch, by its entries, its end and what it left."""
        if now.integrity != "ok":
            self._wrong(f"integrity_check: {now.integrity}")
        self._scheduled_before = dict(self._scheduled)
        self._read(entries)
        self._compare_rows(now)
        self._compare_application(now)
        self._check_armed(now, ended_ms)
        self._measure(entries, ended_ms)
        self._before, self._ended_before_ms = now, ended_ms

    def after_drain(self, now: Snapshot) -> None:
        """Nothing but repeats may be left at the end, and all that was committed was done."""
        left = [key for key in now.alarms if key[0] != "tick"]
        if left:
            self._wrong(f"left after all was due: {left[:5]}")
        for tag, id in self._committed:
            if tag in ONE_SHOTS and (tag, id) not in self._acknowledged:
                self._wrong(f"{tag} {id} was committed and never done")
            if tag == "item" and now.served[id] != 1:
                self._wrong(f"item {id} was committed and served {now.served[id]} times")
        self.figures.payments += now.moves.total()
        self.figures.items += now.served.total()

    def _wrong(self, problem: str) -> None:
        self.problems.append(problem)

    # --- the journal ---

    def _read(self, entries: Iterable[Entry]) -> None:
        ran_here: set[Key] = set()
        for entry in entries:
            key = (entry.tag, entry.id)
            if entry.event == "committed":
                self._committed.add(key)
                self.figures.committed += 1
            elif entry.event == "not committed":
                self._not_committed.add(key)
                self.figures.not_committed += 1
            elif entry.event == "handled":
                self._handled.add(key)
            elif entry.event == "failed":
                self._failures[key] += 1
                ran_here.discard(key)
            elif entry.event == "run":
                self._read_run(entry, key, ran_here)
            elif entry.event.startswith("wrong"):
                self._wrong(f"{entry.event}: {key}")

    def _read_run(self, entry: Entry, key: Key, ran_here: set[Key]) -> None:
        self.figures.runs += 1
        if key in self._acknowledged:
            self._wrong(f"{key} ran again in epoch {entry.epoch} after it was acknowledged")
        if key in self._not_committed:
            self._wrong(f"{key} ran though its schedule was not committed")
        if key[0] in ONE_SHOTS and key in ran_here:
            self._wrong(f"{key} ran twice in epoch {entry.epoch} without a failure")
        if entry.attempts > self._failures[key]:
            self._wrong(f"{key} was charged {entry.attempts} times and failed less often")
        stored = self._before.alarms.get(key)
        if key[0] == "tick" and stored is not None and entry.scheduled_ms < stored.run_at:
            self._wrong(f"{key} ran again for {entry.scheduled_ms}, which was acknowledged")
        if entry.at_ms < entry.scheduled_ms:
            self._wrong(f"{key} ran {entry.scheduled_ms - entry.at_ms} ms early")
        self._scheduled[key] = entry.scheduled_ms
        ran_here.add(key)

    # --- the files ---

    def _compare_rows(self, now: Snapshot) -> None:
        known = {*self._before.alarms, *now.alarms, *self._committed, *self._scheduled}
        for key in known - self._acknowledged:
            self._compare_row(key, now)
        for key in self._not_committed & now.alarms.keys():
            self._wrong(f"{key} is stored though its schedule was not committed")

    def _compare_row(self, key: Key, now: Snapshot) -> None:
        stored = now.alarms.get(key)
        if stored is not None:
            if stored.attempts > self._failures[key]:
                self._wrong(f"{key} was charged {stored.attempts} times and failed less often")
        elif key[0] == "tick":
            self._wrong(f"the repeat {key} is lost")
        elif key[0] in ONE_SHOTS:
            if key not in self._handled and not (key[0] == "pay" and now.moves[key[1]]):
                self._wrong(f"{key} is lost: it is not stored and no handler of it returned")
            self._acknowledged.add(key)

    def _compare_application(self, now: Snapshot) -> None:
        if now.balance not in {None, ACCOUNTS * OPENING_BALANCE}:
            self._wrong(f"the balances add up to {now.balance}")
        for id, times in now.moves.items():
            if times != 1 or ("pay", id) in now.alarms:
                self._wrong(f"payment {id} was made {times} times, or is still to be made")
        for key in self._acknowledged:
            if key[0] == "pay" and now.moves[key[1]] != 1:
                self._wrong(f"{key} was acknowledged and never made")
        self._compare_orders(now)
        self._compare_queues(now)

    def _compare_orders(self, now: Snapshot) -> None:
        for id, times in now.orders.items():
            key = ("plain", id)
            if times != 2:
                self._wrong(f"half of order {id} is stored")
            if key not in now.alarms and key not in self._acknowledged:
                self._wrong(f"order {id} is stored without its alarm")
            if key in self._not_committed:
                self._wrong(f"order {id} is stored though it was not committed")

    def _compare_queues(self, now: Snapshot) -> None:
        owners = {id for tag, id in now.alarms if tag == "batch"}
        if owners != set(now.queue.values()):
            self._wrong(f"manual alarms {owners}, queues {set(now.queue.values())}")
        for tag, item in self._committed:
            if tag == "item" and (item in now.queue) + now.served[item] != 1:
                self._wrong(f"item {item}: queued or served not exactly once")
        for tag, item in self._not_committed:
            if tag == "item" and (item in now.queue or now.served[item]):
                self._wrong(f"item {item} is stored though it was not committed")

    def _check_armed(self, now: Snapshot, ended_ms: int) -> None:
        """Whatever was going on, something wakes the host in time (R18, R20)."""
        if not now.alarms:
            return
        least = min(alarm.wake_at for alarm in now.alarms.values())
        in_flight = ended_ms + IN_FLIGHT_MS + CLOCK_SLACK_MS
        latest = max(least, in_flight)
        if now.native_alarm is None or now.native_alarm > latest:
            self._wrong(f"the host is armed for {now.native_alarm}, and must be by {latest}")
        for key, alarm in now.alarms.items():
            if alarm.lifecycle == "manual" and alarm.wake_at > in_flight:
                self._wrong(f"{key} comes back {alarm.wake_at - ended_ms} ms after the kill")

    # --- how soon ---

    def _measure(self, entries: Sequence[Entry], ended_ms: int) -> None:
        opened_ms = next((entry.at_ms for entry in entries if entry.event == "opened"), None)
        if opened_ms is None:
            return
        runs: dict[Key, Entry] = {}
        enqueued_ms: dict[str, int] = {}
        for entry in entries:
            if entry.event == "run":
                runs.setdefault((entry.tag, entry.id), entry)
            elif entry.event == "enqueuing":
                enqueued_ms.setdefault(entry.id, entry.at_ms)
        for key, stored in self._before.alarms.items():
            run = runs.get(key)
            moved_ms = enqueued_ms.get(key[1])
            if stored.lifecycle == "automatic":
                self._check_deadline(key, stored, run)
            elif moved_ms is None or (run is not None and run.at_ms < moved_ms):
                # No producer has brought its deadline forward.
                self._check_deadline(key, stored, run)
                due_ms = max(stored.wake_at, opened_ms)
                _note_delay(self.figures.manual_delays_ms, due_ms, run, ended_ms)
        if any(
            stored.lifecycle == "automatic" and stored.wake_at <= opened_ms
            for stored in self._before.alarms.values()
        ):
            first = next((run for run in runs.values() if run.tag != "batch"), None)
            _note_delay(self.figures.automatic_delays_ms, opened_ms, first, ended_ms)

    def _check_deadline(self, key: Key, stored: StoredAlarm, run: Entry | None) -> None:
        """Check the first run since opening of a row that was stored before."""
        if run is None:
            return
        if run.at_ms < stored.wake_at:
            self._wrong(f"{key} ran {stored.wake_at - run.at_ms} ms before its deadline")
        if stored.lifecycle == "manual":
            # Only the in-flight deadline lies beyond the kill.
            self.figures.manual_reruns += stored.wake_at > self._ended_before_ms
        elif key[0] != "flaky":
            self.figures.reruns += self._scheduled_before.get(key) == run.scheduled_ms


def _note_delay(delays_ms: list[int], due_ms: int, run: Entry | None, ended_ms: int) -> None:
    """Note how late a run was; one that never came counts up to the kill, if that is long."""
    if run is not None:
        delays_ms.append(run.at_ms - due_ms)
    elif ended_ms - due_ms > PROMPT_MS:
        delays_ms.append(ended_ms - due_ms)
