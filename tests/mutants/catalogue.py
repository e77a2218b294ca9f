"""The mutants, by rule: at least one for each."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final = (
    Mutant(
        rule="R1",
        breaks="two delays that contradict each other are let pass",
        file="_configuration.py",
        old="if resolved.parked_retry_delay_ms < resolved.minimum_retry_delay_ms:",
        new="if resolved.parked_retry_delay_ms < 0:",
        test="test_configuration.py::test_the_relation_of_two_fields_fails_when_they_are_resolved",
    ),
    Mutant(
        rule="R2",
        breaks="an override replaces the host's configuration as a whole",
        file="_configuration.py",
        old="given = host if override is None else _merge(host, override)",
        new="given = host if override is None else override",
        test="test_configuration.py::test_fields_resolve_one_by_one",
    ),
    Mutant(
        rule="R3",
        breaks="revisions come back",
        file="_operations.py",
        old="return os.urandom(_REVISION_BYTES)",
        new="return bytes(_REVISION_BYTES)",
        test="behaviour/test_scheduling.py::test_revisions_are_128_bits_that_never_come_back",
    ),
    Mutant(
        rule="R4",
        breaks="a replayed notice replaces what is there",
        file="_rules.py",
        old="if source is None and given is not None and given <= progress:",
        new="if source is None and given is not None and given < progress:",
        test="behaviour/test_observed_states.py::test_47_known_progress",
    ),
    Mutant(
        rule="R4",
        breaks="every schedule of one handling charges",
        file="_rules.py",
        old="return min(budget, max(source.attempts + 1, stored))",
        new="return min(budget, max(source.attempts, stored) + 1)",
        test="test_rules.py::test_several_schedules_in_one_handling_charge_once",
    ),
    Mutant(
        rule="R5",
        breaks="a manual alarm takes a repeat and a progress",
        file="_requests.py",
        old='        if lifecycle == "manual":\n            _refuse_for_manual(given)\n',
        new="",
        test="behaviour/test_arguments.py::test_bad_scheduling_arguments_are_refused",
    ),
    Mutant(
        rule="R6",
        breaks="a row in hand keeps its deadline",
        file="_rules.py",
        old="existing.run_at <= request.run_at and not circumstances.in_hand",
        new="existing.run_at <= request.run_at",
        test="behaviour/test_observed_states.py::test_23_min_merge_later_during_the_handler",
    ),
    Mutant(
        rule="R6a",
        breaks="a handler that ensures its own alarm keeps it",
        file="_rules.py",
        old="if circumstances.in_hand and source is not None and source.ref == request.ref:",
        new="if circumstances.in_hand and source is None:",
        test=(
            "behaviour/test_ensuring.py"
            "::test_a_handler_that_ensures_its_own_alarm_is_still_acknowledged"
        ),
    ),
    Mutant(
        rule="R7",
        breaks="what is parked does not wait the parked delay",
        file="_rules.py",
        old="    if parked:\n        return ceiling\n",
        new="",
        test="behaviour/test_observed_states.py::test_09_budget_reached",
    ),
    Mutant(
        rule="R8",
        breaks="a repeat catches up what it missed",
        file="_rules.py",
        old="run_at = saturated(now + period)",
        new="run_at = saturated(row.run_at + period)",
        test="behaviour/test_recovery.py::test_a_repeat_catches_no_missed_occurrence_up",
    ),
    Mutant(
        rule="R9",
        breaks="cancelling always says that there was an alarm",
        file="_operations.py",
        old="return lambda session: session.remove(ref)",
        new="return lambda session: session.remove(ref) or True",
        test="behaviour/test_scheduling.py::test_every_scheduler_and_block_cancels_the_same",
    ),
    Mutant(
        rule="R10",
        breaks="the native alarm is reconciled after the commit instead of in it",
        file="_store/_session.py",
        old="""\
        try:
            change = None
            if self.asks_reconciliation and reconciliation is not None:
                self.reconciled = True
                change = _native.reconcile(self.connection.raw, self.host, reconciliation)
            if self._parts:
                self._find_newly_parked()
            witness = self._witness()
            probed = self._probe_before_commit() if witness is None else None
        except BaseException:
            self.connection.rollback()
            raise
        self._commit(witness, probed)
""",
        new="""\
        try:
            if self._parts:
                self._find_newly_parked()
            witness = self._witness()
            probed = self._probe_before_commit() if witness is None else None
        except BaseException:
            self.connection.rollback()
            raise
        self._commit(witness, probed)
        change = None
        if self.asks_reconciliation and reconciliation is not None:
            self.reconciled = True
            change = _native.reconcile(self.connection.raw, self.host, reconciliation)
""",
        test="test_session.py::test_a_reconciliation_that_fails_rolls_back",
    ),
    Mutant(
        rule="R10",
        breaks="a block commits although its body raised",
        file="_transactions.py",
        old="            if error is None:\n                await self.transaction.commit()",
        new="            if self._outermost:\n                await self.transaction.commit()",
        test="behaviour/test_transactions.py::test_an_exception_undoes_every_kind_of_change",
    ),
    Mutant(
        rule="R10",
        breaks="of those whose commit failed only the leader is told",
        file="_group_commit.py",
        old="member.finish(own if member.error is None else None)",
        new="member.finish(own if member is self.members[0] else None)",
        test=("behaviour/test_group_commit.py::test_a_commit_that_fails_fails_its_batch_alone"),
    ),
    Mutant(
        rule="R10",
        breaks="those whose commit failed share one error",
        file="_group_commit.py",
        old="shared = len(self.members) > 1 or not isinstance(error, Exception)",
        new="shared = not isinstance(error, Exception)",
        test=("behaviour/test_group_commit.py::test_a_commit_that_fails_fails_its_batch_alone"),
    ),
    Mutant(
        rule="R10",
        breaks="what follows in the batch runs on after SQLite has rolled back by itself",
        file="_group_commit.py",
        old="        if not session.connection.in_transaction:\n",
        new="        if False:\n",
        test=("behaviour/test_group_commit.py::test_sqlite_rolls_back_by_itself_in_the_middle"),
    ),
    Mutant(
        rule="R10",
        breaks="a function of run_sync can commit",
        file="_store/_connection.py",
        old="        if action == sqlite3.SQLITE_TRANSACTION:\n",
        new="        if action == sqlite3.SQLITE_TRANSACTION and not self._savepoints_allowed:\n",
        test="test_connection.py::test_a_function_cannot_end_the_transaction",
    ),
    Mutant(
        rule="R11",
        breaks="`Cancelled` is raised after the commit",
        file="_store/_executor.py",
        old="        await trio.lowlevel.checkpoint()\n        return function()",
        new=(
            "        result = function()\n"
            "        await trio.lowlevel.checkpoint()\n"
            "        return result"
        ),
        test=(
            "behaviour/test_cancellation.py"
            "::test_cancelled_at_any_step_an_operation_is_all_or_nothing"
        ),
    ),
    Mutant(
        rule="R11",
        breaks="a commit begins although its task is cancelled",
        file="_transactions.py",
        old=(
            '            self.check_usable("commit")\n'
            "            await trio.lowlevel.checkpoint_if_cancelled()\n"
        ),
        new='            self.check_usable("commit")\n',
        test=(
            "behaviour/test_cancellation.py"
            "::test_a_body_that_swallows_its_cancellation_commits_nothing"
        ),
    ),
    Mutant(
        rule="R11",
        breaks="waiting for another process's lock cannot be cancelled",
        file="_database.py",
        old="            await trio.sleep(_RETRY_SECONDS)\n",
        new=(
            "            with trio.CancelScope(shield=True):\n"
            "                await trio.sleep(_RETRY_SECONDS)\n"
        ),
        test=(
            "behaviour/test_cancellation.py"
            "::test_waiting_for_another_processs_lock_can_be_cancelled"
        ),
    ),
    Mutant(
        rule="R11",
        breaks="who was cancelled during the commit is told so, though it is stored",
        file="_group_commit.py",
        old="if batch is None or self.taken or (self.sure and batch.has_turn):",
        new="if batch is None or (self.sure and batch.has_turn):",
        test=(
            "behaviour/test_group_commit.py"
            "::test_cancelled_during_the_commit_all_have_their_results"
        ),
    ),
    Mutant(
        rule="R11",
        breaks="those whose leader is cancelled are told that they are stored",
        file="_group_commit.py",
        old=(
            "            if batch.members:\n"
            "                batch.grant()\n"
            "            else:\n"
            "                self._close(batch)\n"
            "            raise\n"
        ),
        new=("            batch.finish()\n            self._close(batch)\n            raise\n"),
        test=(
            "behaviour/test_group_commit.py"
            "::test_cancelled_while_another_process_has_the_lock_one_leaves_and_others_go_on"
        ),
    ),
    Mutant(
        rule="R12",
        breaks="any task may use a block",
        file="_transactions.py",
        old="        if trio.lowlevel.current_task() is not self.owner:\n",
        new="        if self.owner is None:\n",
        test="behaviour/test_transactions.py::test_its_methods_raise_in_another_task",
    ),
    Mutant(
        rule="R13",
        breaks="what an inner block did stays although it failed",
        file="_transactions.py",
        old="session.connection.undo, Gate(), operation",
        new="session.connection.release, Gate(), operation",
        test=(
            "behaviour/test_transactions.py"
            "::test_an_inner_block_is_undone_alone_and_stored_with_the_outer_one"
        ),
    ),
    Mutant(
        rule="R13",
        breaks="an operation on alarms is no savepoint",
        file="_transactions.py",
        old=(
            "                with session.connection.atomic():\n"
            "                    value = operation(session)\n"
        ),
        new="                value = operation(session)\n",
        test=(
            "behaviour/test_transactions.py::test_an_alarm_operation_that_fails_undoes_itself_only"
        ),
    ),
    Mutant(
        rule="R13",
        breaks="one of several operations that fails is not undone",
        file="_store/_session.py",
        old=("            self._undone = True\n            connection.undo()\n            raise\n"),
        new=(
            "            self._undone = True\n            connection.release()\n            raise\n"
        ),
        test=("behaviour/test_group_commit.py::test_one_that_is_refused_undoes_itself_alone"),
    ),
    Mutant(
        rule="R14",
        breaks="last come, first served",
        file="_database.py",
        old="self._waiting.popleft().grant()",
        new="self._waiting.pop().grant()",
        test="test_database.py::test_turns_are_taken_in_the_order_of_asking",
    ),
    Mutant(
        rule="R14",
        breaks="operations overtake a block that has queued",
        file="_group_commit.py",
        old="if batch is None or self._queue.last not in {None, batch}:",
        new="if batch is None:",
        test=(
            "behaviour/test_group_commit.py"
            "::test_operations_neither_overtake_a_block_nor_are_overtaken"
        ),
    ),
    Mutant(
        rule="R14",
        breaks="operations that queue together do not share a commit",
        file="_group_commit.py",
        old="if batch is None or self._queue.last not in {None, batch}:",
        new="if batch is None or batch.members:",
        test=("behaviour/test_group_commit.py::test_what_queues_during_a_commit_shares_the_next"),
    ),
    Mutant(
        rule="R15",
        breaks="what a handling left behind can write",
        file="_writer.py",
        old="if handling is not None and not handling.active:",
        new="if handling is not None and handling.row is None:",
        test="behaviour/test_left_behind.py::test_a_task_left_behind_cannot_write",
    ),
    Mutant(
        rule="R16",
        breaks="what was parked before is reported again",
        file="_store/_session.py",
        old="if before is None or not before[1]:",
        new="if before is None or before[0]:",
        test="behaviour/test_parked_reports.py::test_a_parked_episode_is_reported_once",
    ),
    Mutant(
        rule="R17",
        breaks="defer_wakes is allowed inside a block",
        file="_wakes.py",
        old='        writer.refuse_inside_transaction("defer_wakes")\n',
        new="",
        test="behaviour/test_defer_wakes.py::test_inside_a_block_it_is_refused",
    ),
    Mutant(
        rule="R18",
        breaks="the guard replaces an earlier alarm",
        file="_store/_native.py",
        old="return native_alarm if reconciliation.now < native_alarm <= guard_at else guard_at",
        new="return guard_at",
        test=(
            "behaviour/test_defer_wakes.py"
            "::test_entering_arms_the_guard_unless_an_earlier_alarm_does"
        ),
    ),
    Mutant(
        rule="R19",
        breaks="cancellation keeps defer_wakes from reconciling",
        file="_wakes.py",
        old='await writer.write_within_bound(nothing, name="defer_wakes")',
        new='await writer.write(nothing, name="defer_wakes")',
        test=(
            "behaviour/test_cancellation.py::test_cancelled_at_any_step_defer_wakes_leaves_no_guard"
        ),
    ),
    Mutant(
        rule="R19",
        breaks="a scope that is not the last one reconciles",
        file="_wakes.py",
        old="last = not self._scopes and self._guarded",
        new="last = self._guarded",
        test="behaviour/test_defer_wakes.py::test_only_the_last_scope_commits_as_it_is_left",
    ),
    Mutant(
        rule="R19",
        breaks="a scope that is left in an active pass reconciles",
        file="_wakes.py",
        old="yield last and self._active is None",
        new="yield last",
        test="behaviour/test_defer_wakes.py::test_a_scope_left_in_a_pass_commits_nothing_itself",
    ),
    Mutant(
        rule="R18",
        breaks="a scope inside another one commits no guard",
        file="_wakes.py",
        old='await writer.write(operation, name="defer_wakes", landed=landed, synced=synced)',
        new=(
            "await trio.lowlevel.checkpoint()\n"
            "            if self._scopes == 1:\n"
            '                await writer.write(operation, name="defer_wakes", landed=landed,'
            " synced=synced)"
        ),
        test=(
            "behaviour/test_defer_wakes.py"
            "::test_a_scope_inside_another_one_renews_a_guard_that_is_due"
        ),
    ),
    Mutant(
        rule="R17",
        breaks="entering a scope commits no guard",
        file="_wakes.py",
        old='await writer.write(operation, name="defer_wakes", landed=landed, synced=synced)',
        new="await trio.lowlevel.checkpoint()",
        test=(
            "behaviour/test_defer_wakes.py"
            "::test_entering_arms_the_guard_unless_an_earlier_alarm_does"
        ),
    ),
    Mutant(
        rule="R20",
        breaks="reconciling only ever lowers the native alarm",
        file="_store/_native.py",
        old="        target = _alarms.earliest_wake(connection, host)\n",
        new=(
            "        target = _alarms.earliest_wake(connection, host)\n"
            "        if native_alarm is not None and target is not None:\n"
            "            target = min(native_alarm, target)\n"
        ),
        test="behaviour/test_reconciliation.py::test_every_scheduling_method_reconciles",
    ),
    Mutant(
        rule="R60",
        breaks="a pass that moves manual alarms does not wait for the disk",
        file="_group_commit.py",
        old="if session.has_changed_rows and not synced:",
        new="if session.now < 0:",
        test="behaviour/test_synced_commits.py::test_a_pass_that_moves_manual_alarms_is_synced",
    ),
    Mutant(
        rule="R60",
        breaks="what comes after the guard of a pass is not synced either",
        file="_store/_connection.py",
        old="if synced is not self._synced:",
        new="if self._synced and not synced:",
        test="behaviour/test_synced_commits.py::test_all_but_the_guard_of_a_pass_is_synced",
    ),
    Mutant(
        rule="R27",
        breaks="rows that become ready together start in any order",
        file="_lane.py",
        old="return self.ready.popleft()",
        new="return self.ready.pop()",
        test="behaviour/test_dispatch.py::test_automatic_rows_start_in_order_at_most_so_many_at_a_time",
    ),
    Mutant(
        rule="R21",
        breaks="a native delivery that joins does not arm the guard again",
        file="_passes.py",
        old="            if native and joined.managed:\n",
        new="            if native and not joined.managed:\n",
        test="behaviour/test_joining.py::test_a_native_delivery_that_joins_arms_the_guard_again",
    ),
    Mutant(
        rule="R21",
        breaks="who joined a cancelled pass runs none itself",
        file="_passes.py",
        old="            if not holds_cancelled(joined.outcome):\n",
        new="            if joined.outcome is not None:\n",
        test="behaviour/test_joining.py::test_a_joiner_of_a_cancelled_pass_runs_one_itself",
        error="AlarmPassError",
    ),
    Mutant(
        rule="R22",
        breaks="a pass takes over the guard of an earlier one",
        file="_wakes.py",
        old="        self._set_guard(guard_delay, 0)\n        return self._active\n",
        new="        self._set_guard(guard_delay, self._guard_at)\n        return self._active\n",
        test=(
            "behaviour/test_passes.py"
            "::test_a_commit_on_the_scopes_way_in_takes_over_no_earlier_guard"
        ),
    ),
    Mutant(
        rule="R22",
        breaks="a pass begins beside a scope that opened just then",
        file="_passes.py",
        old="            if not self._wakes.scopes_open:\n                return True\n",
        new="            return True\n",
        test="behaviour/test_passes.py::test_a_scope_that_opens_while_a_pass_looks_is_waited_for",
    ),
    Mutant(
        rule="R23",
        breaks="a cancelled pass is not reconciled",
        file="_passes.py",
        old='await self._writer.write_surely(nothing, name="reconcile")',
        new='await self._writer.write(nothing, name="reconcile")',
        test="behaviour/test_passes.py::test_a_cancelled_pass_leaves_what_is_due_due",
    ),
    Mutant(
        rule="R23",
        breaks="a post-event check that found nothing commits",
        file="_passes.py",
        old="        needed = not this.found_nothing and (\n",
        new="        needed = this.found_nothing or (\n",
        test=(
            "behaviour/test_passes.py"
            "::test_what_a_post_event_check_found_due_may_be_gone_when_its_turn_comes"
        ),
        error="StorageOperationError",
    ),
    Mutant(
        rule="R24",
        breaks="failed acquisitions are tried again every second",
        file="_passes.py",
        old="doublings = min(self._failed_acquisitions, ceiling.bit_length())",
        new="doublings = 0",
        test=(
            "behaviour/test_pass_failures.py"
            "::test_the_guard_doubles_with_each_failure_up_to_the_parked_delay"
        ),
    ),
    Mutant(
        rule="R25",
        breaks="a dispatch has no limit",
        file="_dispatch.py",
        old="limit = plan.options.limit if plan.automatic else 0",
        new="limit = 1_000_000 if plan.automatic else 0",
        test=(
            "behaviour/test_dispatch.py"
            "::test_at_most_the_limit_is_taken_and_the_rest_comes_with_the_next_delivery"
        ),
    ),
    Mutant(
        rule="R26",
        breaks="a manual row is not moved before its handler runs",
        file="_dispatch.py",
        old="        for row in manual:\n",
        new="        for row in manual[:0]:\n",
        test=(
            "behaviour/test_manual_alarms.py"
            "::test_before_its_handler_runs_it_is_moved_to_its_in_flight_deadline"
        ),
    ),
    Mutant(
        rule="R27",
        breaks="a row that was changed since it was chosen runs",
        file="_dispatch.py",
        old="        if row is None or row.revision != due.revision:\n",
        new="        if row is None:\n",
        test="behaviour/test_dispatch.py::test_a_row_that_was_changed_since_it_was_chosen_is_skipped",
    ),
    Mutant(
        rule="R27",
        breaks="an alarm runs beside its own handler",
        file="_dispatch.py",
        old="if row.ref in self._state.running or self._starts_nothing():",
        new="if self._starts_nothing():",
        test=(
            "behaviour/test_dispatch.py"
            "::test_an_alarm_scheduled_anew_does_not_run_beside_its_running_handler"
        ),
        error="TooSlowError",  # it does not wait for the handler that the test holds
    ),
    Mutant(
        rule="R27",
        breaks="a row that an acknowledgement brought along runs though it was changed",
        file="_lane.py",
        old=("            self.in_hand = self._lane.admit(self._due, self._found)\n"),
        new=(
            "            if self._found is not None:\n"
            "                self._due = attrs.evolve(self._due, revision=self._found.revision)\n"
            "            self.in_hand = self._lane.admit(self._due, self._found)\n"
        ),
        test=(
            "behaviour/test_one_trip.py"
            "::test_a_row_changed_from_outside_while_the_former_is_handled_is_seen"
        ),
    ),
    Mutant(
        rule="R27",
        breaks="the next row is re-read before its predecessor is handled",
        file="_dispatch.py",
        old=(
            "                await self._process(taken, following)\n"
            "        except StorageOperationError as error:\n"
        ),
        new=(
            "                await self._writer.look(\n"
            "                    following.read_after(lambda _: None),\n"
            '                    name="dispatch",\n'
            "                    landed=following.landed,\n"
            "                )\n"
            "                await self._process(taken, _NOTHING_FOLLOWS)\n"
            "        except StorageOperationError as error:\n"
        ),
        test=(
            "behaviour/test_one_trip.py"
            "::test_a_row_changed_from_outside_while_the_former_is_handled_is_seen"
        ),
    ),
    Mutant(
        rule="R27",
        breaks="the next row starts though its pass was cancelled meanwhile",
        file="_dispatch.py",
        old=(
            "            await trio.lowlevel.checkpoint_if_cancelled()\n"
            "            if not self._starts_nothing():\n"
            "                await self._process(taken, following)\n"
        ),
        new=(
            "            if not self._starts_nothing():\n"
            "                await self._process(taken, following)\n"
        ),
        test=(
            "behaviour/test_one_trip.py"
            "::test_a_pass_cancelled_as_a_row_is_settled_does_not_start_the_next"
        ),
    ),
    Mutant(
        rule="R27",
        breaks="the next row stays in hand though its pass was cancelled",
        file="_dispatch.py",
        old=(
            "        try:\n"
            "            # Cancelled since the row before was settled: this one does not begin.\n"
            "            await trio.lowlevel.checkpoint_if_cancelled()\n"
        ),
        new=("        await trio.lowlevel.checkpoint_if_cancelled()\n        try:\n"),
        test=(
            "behaviour/test_one_trip.py"
            "::test_a_pass_cancelled_as_a_row_is_settled_does_not_start_the_next"
        ),
    ),
    Mutant(
        rule="R27",
        breaks="rows that were about to start stay in hand though their pass was cancelled",
        file="_dispatch.py",
        old="            self.let_go()\n            # A manual row",
        new="            # A manual row",
        test=(
            "behaviour/test_group_commit_more.py"
            "::test_a_row_that_was_brought_along_does_not_start_once_the_host_closes"
        ),
    ),
    Mutant(
        rule="R27",
        breaks="manual permits are taken per dispatcher instead of per pass",
        file="_dispatchers.py",
        old="            manual_limiter=frame.limiter,\n",
        new="            manual_limiter=trio.CapacityLimiter(MANUAL_CONCURRENCY),\n",
        test=(
            "behaviour/test_registrations_run.py"
            "::test_manual_alarms_of_all_dispatchers_share_four_permits"
        ),
    ),
    Mutant(
        rule="R28",
        breaks="the acknowledgement does not compare the revision",
        file="_operations.py",
        old=(
            "        if existing is None or existing.revision != row.revision:\n"
            "            return False\n"
        ),
        new="        if existing is None:\n            return False\n",
        test=(
            "behaviour/test_failures_and_retries.py"
            "::test_a_change_from_outside_while_the_handler_runs_stands"
        ),
    ),
    Mutant(
        rule="R28",
        breaks="a failure is charged to a newer revision",
        file="_operations.py",
        old=(
            "        if existing is None or existing.revision != row.revision:\n"
            "            return None\n"
        ),
        new="        if existing is None:\n            return None\n",
        test="behaviour/test_failures_and_retries.py::test_on_failure_belongs_to_the_handling",
    ),
    Mutant(
        rule="R28",
        breaks="cancelling the pass prevents an acknowledgement",
        file="_row_handler.py",
        old="""\
            await self._writer.write_surely(
                following.read_after(
                    acknowledging(row, self._plan.configuration, completed_at=completed_at)
                ),
                name="acknowledge",
                landed=following.landed,
            )
""",
        new="""\
            await self._writer.write(
                following.read_after(
                    acknowledging(row, self._plan.configuration, completed_at=completed_at)
                ),
                name="acknowledge",
            )
            following.landed(None)
""",
        test=(
            "behaviour/test_failures_and_retries.py"
            "::test_an_acknowledgement_is_not_prevented_by_cancelling_the_pass"
        ),
    ),
    Mutant(
        rule="R28",
        breaks="what does not decode may be skipped",
        file="_row_handler.py",
        old="        await self._charge(handling, route, failure, answer.action, following)\n",
        new=(
            '        if answer.action == "skip-and-advance-repeat":\n'
            "            await self.acknowledge(row, None, following)\n"
            "        else:\n"
            "            await self._charge(handling, route, failure, answer.action, following)\n"
        ),
        test=(
            "behaviour/test_failures_and_retries.py"
            "::test_a_payload_that_does_not_decode_is_retried_and_never_skipped"
        ),
    ),
    Mutant(
        rule="R28",
        breaks="the next row starts before its predecessor is acknowledged",
        file="_row_handler.py",
        old="                await self.acknowledge(row, event, following)\n",
        new=(
            "                await self._writer.look(\n"
            "                    following.read_after(lambda _: None),\n"
            '                    name="dispatch",\n'
            "                    landed=following.landed,\n"
            "                )\n"
            "                following._lane.wake()\n"
            "                for _ in range(9):\n"
            "                    await trio.lowlevel.checkpoint()\n"
            "                await self.acknowledge(row, event, following)\n"
        ),
        test=(
            "behaviour/test_one_trip.py"
            "::test_a_handler_starts_only_when_the_former_is_settled_durably"
        ),
    ),
    Mutant(
        rule="R29",
        breaks="manual rows wait an hour although the pass was cancelled",
        file="_dispatch.py",
        old="            await self._move_after()\n        finally:\n",
        new=(
            "        finally:\n"
            "            with trio.CancelScope(shield=True):\n"
            "                await self._move_after()\n"
        ),
        test=(
            "behaviour/test_manual_alarms.py"
            "::test_a_cancelled_pass_brings_it_back_at_its_in_flight_deadline"
        ),
    ),
    Mutant(
        rule="R30",
        breaks="due rows that nobody owns are left alone",
        file="_dispatchers.py",
        old="""\
            prepared.beside.append(
                self._dispatch(lambda _: None, _DEFAULT_OPTIONS, frame, view=unowned)
            )
""",
        new="            pass\n",
        test="behaviour/test_registrations_run.py::test_a_run_applies_the_unknown_tag_policy",
    ),
    Mutant(
        rule="R31",
        breaks="two services of one tag are merged",
        file="_registrations.py",
        old=(
            '    _require_unique("tag", [tag for dispatcher in dispatchers'
            " for tag in dispatcher.handlers])\n"
        ),
        new="",
        test=(
            "behaviour/test_registrations_run.py"
            "::test_keys_and_tags_are_unique_over_all_registrations"
        ),
    ),
    Mutant(
        rule="R32",
        breaks="the stored lifecycle is not read",
        file="_store/_alarms.py",
        old="        lifecycle=found[2],\n",
        new='        lifecycle="automatic",\n',
        test="behaviour/test_crash_recovery.py::test_the_lifecycle_is_known_after_a_restart",
    ),
    Mutant(
        rule="R33",
        breaks="what a hook's limit left over fails",
        file="_dispatchers.py",
        old="        automatic = not tracked.dispatched\n",
        new="        automatic = True\n",
        test="behaviour/test_hooks.py::test_a_hook_keeps_its_batch_limit",
    ),
    Mutant(
        rule="R34",
        breaks="the raw hook waits for no dispatcher",
        file="_dispatchers.py",
        old="first = hook is not None and dispatcher.has_automatic",
        new="first = False",
        test=(
            "behaviour/test_hooks.py"
            "::test_the_raw_hook_starts_when_automatic_dispatchers_have_returned"
        ),
    ),
    Mutant(
        rule="R35",
        breaks="opening reconciles a host that is not managed",
        file="_runtime.py",
        old="        if state.managed and state.native_alarm != earliest:\n",
        new="        if state.native_alarm != earliest:\n",
        test=(
            "behaviour/test_native_ownership.py::test_opening_an_unmanaged_host_reconciles_nothing"
        ),
    ),
    Mutant(
        rule="R35",
        breaks="setting the native alarm shares a commit with others",
        file="_writer.py",
        old="left there.\n            grouped=asks_reconciliation,\n",
        new="left there.\n            grouped=True,\n",
        test=(
            "behaviour/test_group_commit.py"
            "::test_each_setting_of_the_native_alarm_has_a_commit_of_its_own"
        ),
    ),
    Mutant(
        rule="R36",
        breaks="an equal copy of the event acknowledges",
        file="_scheduler.py",
        old="handling.event is not event:",
        new="handling.event != event:",
        test="behaviour/test_acknowledge.py::test_any_other_object_is_refused",
    ),
    Mutant(
        rule="R36",
        breaks="an acknowledgement counts before its commit",
        file="_scheduler.py",
        old='session.after_commit(lambda: setattr(handling, "acknowledged", True))',
        new="handling.acknowledged = True",
        test=(
            "behaviour/test_acknowledge.py"
            "::test_a_transaction_that_is_not_committed_acknowledges_nothing"
        ),
    ),
    Mutant(
        rule="R36",
        breaks="what is acknowledged is acknowledged again when the handler returns",
        file="_scheduler.py",
        old='session.after_commit(lambda: setattr(handling, "acknowledged", True))',
        new="pass",
        test="behaviour/test_acknowledge.py::test_after_it_the_storage_is_not_needed_any_more",
    ),
    Mutant(
        rule="R40",
        breaks="an event cancels its nursery as its body ends",
        file="_events.py",
        old="                    yield frame.scope\n",
        new=(
            "                    yield frame.scope\n"
            "                    nursery.cancel_scope.cancel()\n"
        ),
        test=(
            "behaviour/test_events.py"
            "::test_what_is_started_in_the_nursery_ends_before_the_scope_is_left"
        ),
    ),
    Mutant(
        rule="R41",
        breaks="a check after an event runs in the event's context",
        file="_runtime.py",
        old="self._context.copy().run(self._nursery.start_soon, self._check_after_event)",
        new="self._nursery.start_soon(self._check_after_event)",
        test="behaviour/test_after_event.py::test_the_check_runs_in_the_hosts_context",
    ),
    Mutant(
        rule="R50",
        breaks="the driver does not notice commits while it sleeps",
        file="_driver.py",
        old="            self._sleeping.cancel()\n",
        new="            pass\n",
        test="behaviour/test_driver.py::test_it_delivers_at_the_deadline",
    ),
    Mutant(
        rule="R50",
        breaks="a pass that lives does not renew its guard",
        file="_passes.py",
        old="                nursery.start_soon(self._renew_guard, this, first)\n",
        new="                del first\n",
        test=(
            "behaviour/test_driver.py"
            "::test_the_guard_is_renewed_while_a_pass_runs_and_nothing_is_started"
        ),
    ),
    Mutant(
        rule="R51",
        breaks="an episode of storage failures never ends",
        file="_episodes.py",
        old="        self._logged.clear()\n",
        new="",
        test="behaviour/test_storage_failures.py::test_each_episode_is_logged_once_per_cause",
    ),
    Mutant(
        rule="R52",
        breaks="opening does not reconcile",
        file="_runtime.py",
        old="        await runtime.reconcile_on_opening()\n",
        new="        await trio.lowlevel.checkpoint()\n",
        test="behaviour/test_observed_states.py::test_52_killed_in_an_automatic_handler",
    ),
    Mutant(
        rule="R53",
        breaks="what was handled but not acknowledged runs again",
        file="_row_handler.py",
        old=(
            "            self._state.unacknowledged[row.ref] ="
            " Unacknowledged(row.revision, completed_at, event)\n"
        ),
        new="",
        test=(
            "behaviour/test_storage_failures.py"
            "::test_what_was_handled_while_the_storage_failed_is_not_run_again"
        ),
    ),
    Mutant(
        rule="R53",
        breaks="the dispatch goes on though an acknowledgement failed",
        file="_row_handler.py",
        old="completed_at, event)\n            self._tally.stop(error)\n",
        new="completed_at, event)\n            self._tally.errors.append(error)\n",
        test=("behaviour/test_one_trip.py::test_a_settlement_that_fails_starts_nothing_more"),
    ),
    Mutant(
        rule="R27",
        breaks="a row starts though nothing is to start any more",
        file="_dispatch.py",
        old=(
            "            if not self._starts_nothing():\n"
            "                await self._process(taken, following)\n"
        ),
        new="            await self._process(taken, following)\n",
        test=(
            "behaviour/test_group_commit_more.py"
            "::test_a_row_that_was_brought_along_does_not_start_once_the_host_closes"
        ),
    ),
    Mutant(
        rule="R60",
        breaks="synchronous=off",
        file="_store/_connection.py",
        old='raw.execute(f"PRAGMA synchronous = {synchronous}")',
        new='raw.execute("PRAGMA synchronous = off")',
        test="test_connection.py::test_the_writer_is_in_wal_mode_and_syncs_every_commit",
    ),
    Mutant(
        rule="R60",
        breaks="a new database is for everybody to read",
        file="_store/_files.py",
        old="_NEW_FILE_MODE: Final = 0o600",
        new="_NEW_FILE_MODE: Final = 0o644",
        test="test_files.py::test_a_new_database_is_for_its_owner_alone_under_any_umask",
    ),
    Mutant(
        rule="R61",
        breaks="what is due of one tag is found by wake deadline",
        file="_store/_alarms.py",
        old=(
            '    " INDEXED BY trio_alarms_alarms_by_tag"\n'
            '    " WHERE host = ? AND lifecycle = ? AND tag = ? AND wake_at <= ?"\n'
        ),
        new=(
            '    " INDEXED BY trio_alarms_alarms_by_wake"\n'
            '    " WHERE host = ? AND lifecycle = ? AND tag = ? AND wake_at <= ?"\n'
        ),
        test=(
            "test_query_plans.py::test_choosing_does_not_grow_with_what_is_overdue_under_other_tags"
        ),
    ),
    Mutant(
        rule="R62",
        breaks="each process has a lock file of its own",
        file="_store/_lock.py",
        old='beside = f"trio_alarms-{database.inode:x}-{digest}.lock"',
        new='beside = f"trio_alarms-{os.getpid()}-{database.inode:x}-{digest}.lock"',
        test="test_lock.py::test_a_second_host_of_a_name_is_refused_in_another_process",
    ),
    Mutant(
        rule="R63",
        breaks="an import replaces an alarm that the host has already",
        file="_import.py",
        old="            _refuse_existing(session, row.ref)\n",
        new="",
        test=("behaviour/test_import.py::test_an_alarm_that_the_host_has_already_changes_nothing"),
    ),
    Mutant(
        rule="R63",
        breaks="an import leaves a table of effect-cf's behind",
        file="_store/_effect_cf.py",
        old='    connection.execute(f"DROP TABLE IF EXISTS {_ATTEMPTS}")\n',
        new="",
        test="test_effect_cf.py::test_dropping_leaves_nothing_of_effect_cf",
    ),
)
