"""Take each guard away, in a copy of the repository, and demand that a named test fails.

    python -m tests.mutations [words of the names to run]

A guard that no test misses protects nothing that anybody would notice. Not part of `make test`: it
starts the suite's servers once for every guard.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Mutation:
    """One guard: where it is, what stands in its place, and the test that must notice, by name."""

    name: str
    path: str
    guard: str
    instead: str
    test: str


LOST_LEASE = "test_case_39_a_paused_owner_that_wakes_after_a_takeover_changes_nothing"
INSIDE_WORK = "test_case_39_an_owner_paused_inside_its_work_is_rolled_back_after_a_takeover"
ONE_OF_MANY = "test_case_29_of_many_identical_requests_one_executes"
OTHER_REQUEST = "test_case_21_a_mismatch_on_a_key_whose_lease_is_over_is_a_422"

MUTATIONS = (
    Mutation(
        "a: the owner in the completion, functions",
        "idempotency/sql/complete_v1.sql",
        " AND k.owner = p_owner",
        "",
        f"{LOST_LEASE}[functions-completes]",
    ),
    Mutation(
        "a: the owner in the completion, ORM",
        "idempotency/stores/rows.py",
        "pk=lease.key_id, owner=lease.owner, state=State.PROCESSING.value",
        "pk=lease.key_id, state=State.PROCESSING.value",
        f"{LOST_LEASE}[orm-completes]",
    ),
    Mutation(
        "b: the lease in the claim, functions",
        "idempotency/sql/claim_v1.sql",
        "IF v_row.state = 'processing' AND v_row.lease_expires_at > v_now THEN",
        "IF false THEN",
        f"{ONE_OF_MANY}[functions]",
    ),
    Mutation(
        "b: the lease in the claim, ORM",
        "idempotency/stores/database.py",
        "if row.state == State.PROCESSING and row.lease_expires_at > row.now:",
        "if False:",
        "test_a_running_key_is_busy_for_the_rest_of_its_lease",
    ),
    Mutation(
        "b: the lease in the claim's write, functions",
        "idempotency/sql/claim_v1.sql",
        "          AND k.lease_expires_at IS NOT DISTINCT FROM v_row.lease_expires_at\n",
        "",
        "test_a_takeover_that_waits_for_the_owners_renewal_is_busy",
    ),
    Mutation(
        "b: the lease in the claim's write, ORM",
        "idempotency/stores/database.py",
        "                .filter(claimable)\n",
        "",
        "test_a_portable_claim_interrupted_by_the_owners_renewal_is_busy",
    ),
    Mutation(
        "c: the fingerprint in the reclaim, functions",
        "idempotency/sql/claim_v1.sql",
        "IF v_row.fingerprint <> p_fingerprint THEN",
        "IF false THEN",
        f"{OTHER_REQUEST}[functions-/required]",
    ),
    Mutation(
        "c: the fingerprint in the reclaim, ORM",
        "idempotency/stores/database.py",
        "if bytes(row.fingerprint) != claim.fingerprint:",
        "if False:",
        f"{OTHER_REQUEST}[orm-/required]",
    ),
    Mutation(
        "d: the look for a live key when days are planned away",
        "idempotency/partitions.py",
        "needed = _needed(using, drop)",
        "needed = False",
        "test_a_day_that_a_live_key_points_at_is_never_planned_away",
    ),
    Mutation(
        "d: the look for a live key when a day is dropped",
        "idempotency/partitions.py",
        "if not _needed(using, step):",
        "if True:",
        "test_a_key_that_came_to_need_a_planned_day_gets_it_back",
    ),
    Mutation(
        "d: the detach that lets claims pass it by",
        "idempotency/partitions.py",
        "DETACH PARTITION {step.table} CONCURRENTLY",
        "DETACH PARTITION {step.table}",
        "test_case_54_dropping_days_blocks_no_claim",
    ),
    Mutation(
        "d: a day that is being detached is missing",
        "idempotency/sql/complete_v1.sql",
        "IS DISTINCT FROM to_regclass('idempotency_storedresponse')",
        "IS NULL",
        "test_a_day_that_is_taken_away_under_an_owner_is_missing[PostgresStore-begin_to_detach]",
    ),
    Mutation(
        "d: a replay takes one plan for all days",
        "idempotency/sql/claim_v1.sql",
        "set_config('plan_cache_mode', 'force_generic_plan', true)",
        "''",
        "test_a_replay_does_not_plan_its_look_for_the_answer_anew",
    ),
    Mutation(
        "e: the rollback on a lost lease, functions",
        "idempotency/sql/complete_v1.sql",
        "        RAISE EXCEPTION 'the lease of idempotency key % is lost', p_id "
        "USING ERRCODE = 'ID001';\n",
        "        RETURN NULL;\n",
        f"{INSIDE_WORK}[functions]",
    ),
    Mutation(
        "e: the rollback on a lost lease, ORM",
        "idempotency/stores/rows.py",
        "        if not self._owned(lease).update(**changes):\n            raise LeaseLost\n",
        "        self._owned(lease).update(**changes)\n",
        f"{INSIDE_WORK}[orm]",
    ),
    Mutation(
        "the rollback of what is not stored",
        "idempotency/engine.py",
        "            connection.set_rollback(True)\n            return\n",
        "            return\n",
        "test_a_refusal_that_is_returned_is_rolled_back_and_releases"
        "_the_key[functions-429-/required]",
    ),
    Mutation(
        "withdrawing only what no earlier attempt may have sent",
        "idempotency/operations.py",
        "if isinstance(outcome, NotSent) and first:",
        "if isinstance(outcome, NotSent):",
        "test_an_operation_that_stays_unknown_is_never_withdrawn[functions]",
    ),
    Mutation(
        "the look-up in place of a call that cannot be repeated",
        "idempotency/operations.py",
        "    if first or repeatable:\n",
        "    if True:\n",
        "test_a_call_that_cannot_be_repeated_and_was_interrupted_is_in_doubt[functions]",
    ),
    Mutation(
        "settling: the owner that was seen",
        "idempotency/stores/open_operations.py",
        "            owner=seen.owner,\n",
        "",
        "test_an_operation_that_stands_otherwise_is_not_taken_over[DatabaseStore-owner]",
    ),
    Mutation(
        "settling: the state that was seen",
        "idempotency/stores/open_operations.py",
        "            state=seen.state,\n",
        "",
        "test_an_operation_that_stands_otherwise_is_not_taken_over[DatabaseStore-state]",
    ),
    Mutation(
        "settling: the recovery point that was seen",
        "idempotency/stores/open_operations.py",
        "            recovery_point=seen.recovery_point,\n",
        "",
        "test_an_operation_that_stands_otherwise_is_not_taken_over[DatabaseStore-recovery point]",
    ),
    Mutation(
        "settling: nobody at it when it was never sent",
        "idempotency/stores/open_operations.py",
        "        if idle:\n            standing = standing.filter(self._idle())\n",
        "",
        "test_nobody_says_that_a_call_was_never_sent_while_somebody_may_be_sending_it",
    ),
    Mutation(
        "settling: the story in the transaction of the end",
        "idempotency/settling.py",
        "            _tell_story(store, lease, seen, resolution, _WORDS[type(finding)])\n",
        "        _tell_story(store, lease, seen, resolution, _WORDS[type(finding)])\n",
        "test_the_story_and_the_end_are_written_together_or_not_at_all[done]",
    ),
    Mutation(
        "settling: the time a call may be on its way",
        "idempotency/reconciliation.py",
        "        return outcome if kept.arrives_for(age) <= timedelta(0) else None\n",
        "        return outcome\n",
        "test_what_it_does_not_have_and_would_not_dedupe_may_still_be_on_its_way",
    ),
    Mutation(
        "the end of the time that a downstream key is remembered",
        "idempotency/kept.py",
        "    remembered = window is None or age + settings().lease < window\n",
        "    remembered = True\n",
        "test_a_key_is_trusted_only_as_long_as_the_other_side_remembers_it[after1-0]",
    ),
    Mutation(
        "a gateway's list that is about this call",
        "payments/gateways/enquiries.py",
        "        if not all(_is_asked_for(entry, reference, key) for entry in entries):\n",
        "        if False:\n",
        "test_an_answer_that_says_nothing_certain_leaves_it_unknown[of others]",
    ),
    Mutation(
        "a silent gateway that closes no difference",
        "payments/reconciliation/differences.py",
        "closed.exclude(reference__in=unsure).update(",
        "closed.update(",
        "test_a_posting_that_the_gateway_says_nothing_about_is_no_difference",
    ),
    Mutation(
        "a charge that is being settled, which is no difference yet",
        "payments/reconciliation/comparison.py",
        "return None if on_its_way else",
        "return",
        "test_what_is_still_pending_is_left_to_the_jobs_until_it_is_too_old",
    ),
    Mutation(
        "honesty about a lost COMMIT",
        "idempotency/engine.py",
        "if lost and attempt.finished and sqlstate(error) not in ROLLED_BACK:",
        "if False:",
        "test_case_38_a_connection_lost_after_the_commit_is_a_503"
        "_and_the_retry_replays[functions-/required]",
    ),
    Mutation(
        "a new generation for a key that expired",
        "idempotency/sql/claim_v1.sql",
        "id = DEFAULT, key = p_key",
        "key = p_key",
        "test_a_key_that_is_used_again_after_it_expired_is_another_purchase[functions]",
    ),
    Mutation(
        "the retry budget before the claim",
        "idempotency/admission.py",
        "if in_question and repeated and not self._pay():",
        "if False:",
        "test_a_refused_re_execution_costs_one_statement_and_leaves_the_row_untouched",
    ),
    Mutation(
        "the retry budget's look at a key that nobody marked",
        "idempotency/admission.py",
        "return self._marked or self._budget.scarce",
        "return self._marked",
        "test_a_refused_re_execution_costs_one_statement_and_leaves_the_row_untouched",
    ),
    Mutation(
        "what is in the way of the work, before the claim",
        "idempotency/admission.py",
        "if obstacle is not None and standing is Standing.NEW:",
        "if False:",
        "test_a_new_key_is_refused_for_one_read_and_used_again",
    ),
    Mutation(
        "the refund of what an obstacle turns away",
        "idempotency/admission.py",
        "            self.refund()\n            raise obstacle\n",
        "            raise obstacle\n",
        "test_what_an_obstacle_turns_away_gives_its_ticket_back[in the process]",
    ),
    Mutation(
        "what is in the way of new keys only",
        "idempotency/admission.py",
        "if obstacle is not None and standing is Standing.NEW:",
        "if obstacle is not None:",
        "test_a_running_key_is_in_use_and_one_that_ran_before_runs_on",
    ),
    Mutation(
        "the retry budget after the claim",
        "idempotency/admission.py",
        "if self._marked or attempt > 1:",
        "if self._marked:",
        "test_a_client_that_never_says_so_is_bounded_all_the_same",
    ),
    Mutation(
        "giving back what the retry budget refused",
        "idempotency/admission.py",
        "            _give_back(store, lease, ttl)\n",
        "",
        "test_a_claim_that_the_budget_refuses_is_given_back",
    ),
    Mutation(
        "the recovery point of what the retry budget refused",
        "idempotency/admission.py",
        "if lease.recovery_point:",
        "if False:",
        "test_an_operation_that_the_budget_refuses_is_finished_by_the_job",
    ),
    Mutation(
        "stored answers above the retry budget",
        "idempotency/admission.py",
        "        if standing is Standing.ANSWERED:\n            return\n",
        "",
        "test_a_stored_answer_is_served_whatever_the_budget",
    ),
    Mutation(
        "the refund of a replay",
        "idempotency/engine.py",
        "        request.admission.refund()\n",
        "",
        "test_a_replay_spends_nothing",
    ),
    Mutation(
        "the credit of first attempts",
        "idempotency/admission.py",
        "            self._budget.credit()\n",
        "            pass\n",
        "test_retries_are_a_share_of_first_attempts",
    ),
    Mutation(
        "the retry budget of requests without a key",
        "idempotency/rest_framework/mixin.py",
        "                self._admission.admit(attempt=1)\n",
        "",
        "test_a_retry_without_a_key_is_refused_as_well",
    ),
    Mutation(
        "the deadline before any work, mixin",
        "idempotency/rest_framework/mixin.py",
        "        self._admission.demand_time()\n        method",
        "        method",
        "test_with_nothing_left_it_is_a_504_before_any_work",
    ),
    Mutation(
        "the deadline before any work, decorator",
        "idempotency/http/decorators.py",
        "                    deadline.require()\n",
        "",
        "test_with_nothing_left_a_request_without_a_key_is_a_504_as_well",
    ),
    Mutation(
        "the deadline before a claim",
        "idempotency/engine.py",
        "        request.admission.demand_time()\n",
        "",
        "test_a_duplicate_waits_no_longer_than_its_caller",
    ),
    Mutation(
        "the deadline of who waits",
        "idempotency/engine.py",
        "left = min(until - time.monotonic(), request.admission.time_left)",
        "left = until - time.monotonic()",
        "test_a_duplicate_waits_no_longer_than_its_caller",
    ),
    Mutation(
        "the end of a deadline with its request",
        "idempotency/http/deadlines.py",
        "        _current.reset(self._before)\n",
        "        pass\n",
        "test_what_was_prepared_is_finished_by_the_job_though_the_deadline_is_over",
    ),
    Mutation(
        "outbox: the transaction that a message is written in",
        "idempotency/outbox/writing.py",
        "    _demand_transaction(alias)\n",
        "",
        "test_without_a_transaction_it_is_refused_also_in_the_one_of_a_test",
    ),
    Mutation(
        "outbox: the queue of an aggregate's writers",
        "idempotency/outbox/writing.py",
        "        _queue_for(alias, known.name, aggregate)\n",
        "        pass\n",
        "test_of_two_writers_the_first_to_write_is_the_first_to_commit",
    ),
    Mutation(
        "outbox: the claim in the mark",
        "idempotency/outbox/marks.py",
        "pk=message.sequence, owner=claimed.owner, state=MessageState.SENDING",
        "pk=message.sequence",
        "test_a_dispatcher_that_wakes_after_a_takeover_marks_nothing",
    ),
    Mutation(
        "outbox: the second look under the row lock, statement",
        "idempotency/outbox/claim.sql",
        "        AND m.state IN ('pending', 'sending') AND m.due_at <= (SELECT now FROM clock)\n"
        "    FOR UPDATE",
        "    FOR UPDATE",
        "test_a_claim_that_looked_before_another_one_committed_takes_nothing",
    ),
    Mutation(
        "outbox: the row locks that others skip, statement",
        "idempotency/outbox/claim.sql",
        "(SELECT now FROM clock)\n    FOR UPDATE OF m SKIP LOCKED",
        "(SELECT now FROM clock)\n    FOR UPDATE OF m",
        "test_a_message_that_somebody_has_locked_is_skipped_and_not_waited_for",
    ),
    Mutation(
        "outbox: the condition of the claim's write, ORM",
        "idempotency/outbox/claims.py",
        "pk=row.pk, state=row.state, owner=row.owner, due_at__lte=clock.now()",
        "pk=row.pk",
        "test_dispatchers_at_once_claim_each_message_once[orm]",
    ),
    Mutation(
        "outbox: the order of an aggregate, statement",
        "idempotency/outbox/claim.sql",
        "FROM due WHERE held_by IS NULL",
        "FROM due",
        "test_a_dead_message_holds_those_behind_it[statement]",
    ),
    Mutation(
        "outbox: the order of an aggregate, ORM",
        "idempotency/outbox/claims.py",
        "~Exists(earlier), ",
        "",
        "test_a_dead_message_holds_those_behind_it[orm]",
    ),
    Mutation(
        "outbox: the share of a destination",
        "idempotency/outbox/claim.sql",
        "WHERE turn <= room ORDER BY",
        "ORDER BY",
        "test_a_destination_gets_its_share_at_once_and_no_more[statement]",
    ),
    Mutation(
        "outbox: the next one's turn",
        "idempotency/outbox/marks.py",
        "        wake_next(using, message.channel, message.destination, message.aggregate)\n",
        "        pass\n",
        "test_those_that_wait_for_their_predecessor_do_not_hide_the_ones_behind_them[statement]",
    ),
    Mutation(
        "outbox: attempts that nobody heard of again count",
        "idempotency/outbox/dispatcher.py",
        "if claimed.message.attempt > claimed.channel.attempts:",
        "if False:",
        "test_attempts_that_never_said_how_they_ended_count",
    ),
    Mutation(
        "outbox: the look after a run has given its lock back",
        "idempotency/outbox/jobs.py",
        "while not (result.busy or result.more) and _is_something_due(dispatcher):",
        "while False:",
        "test_a_message_committed_while_a_run_ends_is_not_left_to_beat",
    ),
    Mutation(
        "outbox: what an operator saw",
        "idempotency/outbox/operators.py",
        "pk=sequence, state=seen.state, attempt=seen.attempt, queued_at=seen.queued_at",
        "pk=sequence",
        "test_a_decision_about_what_has_changed_since_is_none",
    ),
    Mutation(
        "outbox: a permission for each decision",
        "idempotency/admin/outbox_decisions.py",
        "if not (decision.permitted(model_admin, request) and ",
        "if not (",
        "test_each_decision_needs_a_permission_of_its_own_and_that_of_seeing",
    ),
    Mutation(
        "outbox: dead messages are not pruned",
        "idempotency/outbox/jobs.py",
        "state__in=_PRUNED, ",
        "",
        "test_what_was_settled_long_ago_is_deleted_with_its_history_and_nothing_else",
    ),
    Mutation(
        "inbox: the effect in the transaction of its record",
        "idempotency/inbox.py",
        "        answer = Engine(get_store(using)).run(request, _Consumption(work))\n",
        "        done = work()\n"
        "        answer = Engine(get_store(using)).run(request, _Consumption(lambda: done))\n",
        "test_a_consumer_that_fails_leaves_nothing_and_the_next_delivery_runs",
    ),
    Mutation(
        "inbox: one id, one content",
        "idempotency/inbox.py",
        "length_prefixed(_CONTENT_DOMAIN, content)",
        "length_prefixed(_CONTENT_DOMAIN)",
        "test_other_content_under_the_id_is_refused_and_runs_nothing",
    ),
    Mutation(
        "tasks: a delivery beside another is not acknowledged away",
        "idempotency/celery.py",
        "            _queue_again(task, error)\n",
        "            return None\n",
        "test_a_delivery_beside_another_is_queued_again_before_it_is_let_go",
    ),
    Mutation(
        "tasks: a lease that outlives the time limit",
        "idempotency/celery.py",
        "timedelta(seconds=limit + MARGIN) if limit else settings().lease",
        "settings().lease",
        "test_its_lease_outlives_its_time_limit",
    ),
    Mutation(
        "webhooks: the checked address is the one that is connected to",
        "payments/webhooks/delivery.py",
        "            resolve=book.addresses,\n",
        "",
        "test_the_address_that_was_checked_is_the_one_that_is_connected_to",
    ),
    Mutation(
        "webhooks: every address of a name, and not the first",
        "payments/webhooks/addresses.py",
        "if not all(may_be_called(address) for address in found):",
        "if not may_be_called(found[0]):",
        "test_one_hostile_address_among_public_ones_is_enough_to_refuse",
    ),
    Mutation(
        "webhooks: only unicast addresses of IPv6",
        "payments/webhooks/addresses.py",
        "if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:",
        "if False:",
        "test_a_name_that_leads_to_a_hostile_address_is_refused[::127.0.0.1]",
    ),
    Mutation(
        "webhooks: addresses that hold another one inside",
        "payments/webhooks/addresses.py",
        " and not _is_in(address, _NOT_PUBLIC)",
        "",
        "test_a_name_that_leads_to_a_hostile_address_is_refused[2002:7f00:1::]",
    ),
    Mutation(
        "webhooks: a 410 counts for the URL that gave it",
        "payments/webhooks/endpoints.py",
        "pk=endpoint.pk, url=endpoint.url",
        "pk=endpoint.pk",
        "test_a_410_of_the_url_before_does_not_switch_off_the_one_after",
    ),
    Mutation(
        "gateway events: one id, one body",
        "payments/webhooks/gateway_events.py",
        "ended=read(body), content=body",
        "ended=read(body)",
        "test_an_altered_body_that_is_signed_is_not_the_event_that_was_recorded",
    ),
    Mutation(
        "gateway events: whoever is at a charge is left alone",
        "payments/webhooks/settling.py",
        "if settlement.is_held(movement):",
        "if False:",
        "test_a_request_that_is_still_at_it_is_left_alone",
    ),
    Mutation(
        "gateway events: the gateway's books outweigh an event",
        "payments/webhooks/settling.py",
        "    outcome = _asked(movement)\n",
        "    outcome: Outcome = Unknown('')\n",
        "test_the_gateways_books_outweigh_an_event",
    ),
    Mutation(
        "gateway events: an event's own word is about the same money",
        "payments/webhooks/settling.py",
        "isinstance(outcome, Unknown) and _is_the_same(movement, ended)",
        "isinstance(outcome, Unknown)",
        "test_and_not_about_other_money[changes0]",
    ),
    Mutation(
        "gateway events: a second movement is no known one",
        "payments/webhooks/settling.py",
        "movement.gateway_reference == ended.id and ",
        "",
        "test_an_event_that_contradicts_what_is_settled_waits_for_an_operator",
    ),
    Mutation(
        "stripe: asking before anything is sent again",
        "payments/gateways/stripe_calls.py",
        "if question is None or not findings().in_doubt:",
        "if True:",
        "test_ours_make_one_and_know_it[trusting the key]",
    ),
    Mutation(
        "stripe: asking once more at the end",
        "payments/gateways/stripe_calls.py",
        "if isinstance(outcome, Unknown) and (it := self.ask(look_up)) is not None:",
        "if False and (it := self.ask(look_up)) is not None:",
        "test_ours_make_one_and_know_it[trusting nothing]",
    ),
    Mutation(
        "stripe: a later step that is not sent is not withdrawn",
        "payments/gateways/stripe.py",
        "            return Unknown(outcome.reason)\n",
        "            return outcome\n",
        "test_a_capture_that_is_turned_away_is_not_withdrawn",
    ),
    Mutation(
        "stripe: the SDK's own retries are off",
        "payments/gateways/stripe.py",
        "            max_network_retries=0,\n",
        "            max_network_retries=1,\n",
        "test_a_stored_error_in_place_of_the_work_stays_unknown",
    ),
    Mutation(
        "stripe: a 500 is final under its key",
        "payments/gateways/stripe_answers.py",
        "_PASSING = {408, 409, 425, 502, 503, 504}",
        "_PASSING = {408, 409, 425, 500, 502, 503, 504}",
        "test_what_says_nothing_about_the_money_is_unknown[500-api_error-None-False]",
    ),
    Mutation(
        "stripe: another amount under our names is another request's",
        "payments/gateways/stripe_answers.py",
        "return named and all(it.get(name) == order[name] for name in _MONEY & order.keys())",
        "return named",
        "test_the_key_of_another_charge_moves_nothing_and_says_nothing[stripe]",
    ),
    Mutation(
        "stripe: a replay tells how it was",
        "payments/gateways/stripe.py",
        "        if isinstance(verdict, Unknown):\n",
        "        if False:\n",
        "test_a_refund_that_is_pending_is_unknown_and_looked_at_anew",
    ),
    Mutation(
        "stripe: the body of a later delivery may differ",
        "payments/gateways/stripe_events.py",
        'return Event(id=event["id"], ended=_ended(event["data"]["object"]))',
        'return Event(id=event["id"], ended=_ended(event["data"]["object"]), content=body)',
        "test_an_event_that_is_sent_again_is_recorded_once_though_its_body_has_changed",
    ),
    Mutation(
        "lab: nothing of it outside the demo",
        "config/lab/__init__.py",
        "if not settings.DEMO:",
        "if False:",
        "test_outside_the_demo_there_is_no_lab_and_nothing_of_it_can_be_imported",
    ),
    Mutation(
        "an operator's answer in the service's language",
        "idempotency/operators.py",
        "translation.override(django_settings.LANGUAGE_CODE)",
        "translation.override(translation.get_language())",
        "test_a_key_that_is_ended_in_german_answers_in_english",
    ),
    Mutation(
        "watching: the end of waiting for a database that hangs",
        "idempotency/observability/looks.py",
        "        if not self._under_way.acquire(timeout=self._seconds):\n"
        "            raise NoAnswer\n",
        "",
        "test_while_one_hangs_no_other_is_asked",
    ),
    Mutation(
        "watching: the token of the metrics",
        "payments/metrics.py",
        '        if not constant_time_compare(request.headers.get("Authorization", ""), '
        'f"Bearer {token}"):\n',
        "        if False:\n",
        "test_without_the_token_it_is_a_401",
    ),
    Mutation(
        "watching: metrics that are closed without a token",
        "payments/metrics.py",
        "        raise Http404\n",
        "        pass\n",
        "test_without_a_token_there_is_nothing_there",
    ),
    Mutation(
        "watching: what waits for its predecessor is not late",
        "idempotency/observability/outbox_lag.sql",
        "WHERE m.aggregate = '' OR NOT EXISTS (",
        "WHERE true OR NOT EXISTS (",
        "test_what_waits_for_its_predecessor_is_not_late",
    ),
    Mutation(
        "watching: the bound of what is counted",
        "idempotency/observability/vitals.py",
        "    return rows[:MOST].count()\n",
        "    return rows.count()\n",
        "test_numbers_are_counted_up_to_a_bound",
    ),
    Mutation(
        "watching: hiding what a request brought",
        "idempotency/redaction.py",
        "            line = line.replace(value, HIDDEN)\n",
        "            pass\n",
        "test_what_a_request_brought_is_hidden_until_it_ends",
    ),
    Mutation(
        "watching: an error that is named and not quoted",
        "idempotency/spans.py",
        "name, record_exception=False, set_status_on_exception=False",
        "name",
        "test_an_error_is_named_and_not_quoted",
    ),
    Mutation(
        "watching: a request id that is the key",
        "idempotency/http/request_ids.py",
        "        if any(secret in request_id for secret in secrets):\n",
        "        if False:\n",
        "test_a_request_id_is_answered_and_a_bad_one_replaced",
    ),
    Mutation(
        "on call: the permission to see the operations page",
        "idempotency/admin/operations.py",
        "        if not self.has_view_permission(request):\n",
        "        if False:\n",
        "test_it_needs_a_permission_of_its_own",
    ),
    Mutation(
        "on call: the end of counting what is open",
        "idempotency/overview/storage.py",
        'running.order_by("lease_expires_at")[:MOST]',
        'running.order_by("lease_expires_at")',
        "test_counting_stops",
    ),
    Mutation(
        "on call: the minute of a slot",
        "idempotency/traffic.lua",
        "if tonumber(of) == minute then",
        "if of then",
        "test_a_slot_of_yesterday_is_overwritten",
    ),
    Mutation(
        "on call: a forked process that counts for itself",
        "idempotency/metrics.py",
        "    os.register_at_fork(after_in_child=_labelled.cache_clear)\n",
        "    pass\n",
        "test_a_forked_process_tells_what_it_counts_itself",
    ),
    Mutation(
        "on call: saying what a search left out",
        "idempotency/search.py",
        "    if walked.since is None:\n",
        "    if True:\n",
        "test_a_key_is_found_among_the_newest_and_what_was_looked_at_is_said",
    ),
    Mutation(
        "on call: the place where a filter goes on",
        "idempotency/admin/changelists.py",
        "            self.has_older, self._older_place = True, str(walked.since)\n",
        "            self.has_older = True\n",
        "test_a_filter_without_an_index_is_looked_for_as_long_as_there_is_time",
    ),
    Mutation(
        "on call: the attempt that the command showed",
        "idempotency/management/open_key.py",
        '    if options["owner"] not in (None, ready[0].key.owner):\n',
        "    if False:\n",
        "test_an_attempt_that_is_not_the_one_shown_is_left_alone",
    ),
    Mutation(
        "deciding: nobody is asked about what changed since it was seen",
        "idempotency/doubts.py",
        "    return key if key is not None and Seen.of(key) == seen else None\n",
        "    return key\n",
        "test_nobody_is_asked_about_a_key_that_changed[ask]",
    ),
    Mutation(
        "deciding: a force-fail of what was seen",
        "idempotency/operators.py",
        "        if not stands_as(seen, key_id, store.using):\n",
        "        if False:\n",
        "test_no_operation_makes_its_call_once_it_was_ended_as_harmless",
    ),
    Mutation(
        "deciding: a proposal about what was seen",
        "idempotency/doubts.py",
        "        if not operators.stands_as(seen, key.pk, using):\n",
        "        if False:\n",
        "test_nothing_is_proposed_about_what_somebody_took_over_meanwhile",
    ),
    Mutation(
        "deciding: an approval of what was seen",
        "idempotency/doubts.py",
        "    key = _as_seen(using, proposal.key_id, seen)\n",
        "    key = IdempotencyKey.objects.annotate(now=clock.now()).get(pk=proposal.key_id)\n"
        "    seen = Seen.of(key)\n",
        "test_it_is_about_the_key_as_it_was_seen",
    ),
    Mutation(
        "deciding: the other side's word",
        "idempotency/enquiry.py",
        "    if told.against != shown(answer):\n        weigh(",
        "    if False:\n        weigh(",
        "test_nothing_is_written_against_what_the_other_side_says[succeeded-b1-answer0]",
    ),
    Mutation(
        "deciding: the time a call may be on its way",
        "idempotency/enquiry.py",
        "        if left > timedelta(0):\n",
        "        if False:\n",
        "test_a_call_may_still_be_on_its_way[answer0]",
    ),
    Mutation(
        "deciding: the line in the log with the end",
        "idempotency/settling.py",
        "    if resolution.also is not None:\n        resolution.also()\n",
        "",
        "test_nothing_is_decided_without_its_line_in_the_log[succeeded]",
    ),
    Mutation(
        "deciding: the permission of each step",
        "idempotency/admin/deciding.py",
        ' or not request.user.has_perm(f"idempotency.{permission}")',
        "",
        "test_each_step_takes_its_own_permission_and_the_one_to_see_keys[permissions7-settle-403]",
    ),
    Mutation(
        "four eyes: above the limit",
        "idempotency/doubts.py",
        "    if stake_of(key).two_people:\n",
        "    if False:\n",
        "test_a_proposal_changes_nothing_and_is_told",
    ),
    Mutation(
        "four eyes: what nobody can say the amount of",
        "idempotency/approvals.py",
        "        return Stake(None, two_people=limits is not None)\n",
        "        return Stake(None, two_people=False)\n",
        "test_where_the_amount_cannot_be_said_it_takes_two",
    ),
    Mutation(
        "four eyes: another person",
        "idempotency/doubts.py",
        "    approvals.demand_another(proposal, person)\n",
        "",
        "test_nobody_approves_his_own[same0]",
    ),
    Mutation(
        "four eyes: another user under another name",
        "idempotency/approvals.py",
        "    if same_user or person.name == proposal.proposed_by:\n",
        "    if person.name == proposal.proposed_by:\n",
        "test_nobody_approves_his_own[same3]",
    ),
    Mutation(
        "four eyes: the permission to approve",
        "idempotency/admin/proposals.py",
        'if not (self.has_approve_permission(request) or (own and step == "reject")):',
        "if False:",
        "test_approving_takes_its_own_permission[permissions1-approve-403]",
    ),
    Mutation(
        "four eyes: the end of a proposal's time",
        "idempotency/approvals.py",
        "        status=ProposalStatus.OPEN, expires_at__gt=clock.now()\n",
        "        status=ProposalStatus.OPEN\n",
        "test_it_expires",
    ),
    Mutation(
        "four eyes: closed with the end it approves",
        "idempotency/doubts.py",
        "        approvals.close(proposal, ProposalStatus.APPROVED, person, reason, using=using)\n",
        "        pass\n",
        "test_one_that_is_rejected_while_it_is_approved_is_not_carried_out",
    ),
    Mutation(
        "privacy: a body that cannot be read is not sent as it is stored",
        "idempotency/stores/rows.py",
        "return encryption.bare(stored)",
        "return stored",
        "test_a_key_that_was_removed_too_early_runs_nothing_and_says_so[functions]",
    ),
    Mutation(
        "privacy: the marker of encryption is nobody else's",
        "idempotency/core/responses.py",
        '"access-control-", INTERNAL)',
        '"access-control-")',
        "test_no_handler_can_pass_its_answer_off_as_encrypted",
    ),
    Mutation(
        "privacy: an operation whose key is gone goes nowhere",
        "idempotency/operations.py",
        "except ImproperlyConfigured as error:\n        # Nobody",
        "except ZeroDivisionError as error:\n        # Nobody",
        "test_an_operation_whose_key_is_gone_waits_for_it[functions]",
    ),
    Mutation(
        "privacy: JSON that only looks sealed is refused",
        "idempotency/encryption.py",
        "    if _is_sealed(value):\n        raise",
        "    if False:\n        raise",
        "test_a_payload_that_looks_encrypted_is_refused[in clear]",
    ),
    Mutation(
        "privacy: a message that cannot be read is not delivered",
        "idempotency/outbox/dispatcher.py",
        "if isinstance(claimed.message.payload, Unreadable):",
        "if False:",
        "test_a_message_that_nobody_can_read_holds_up_no_other[orm]",
    ),
    Mutation(
        "privacy: an erased body is not sealed anew",
        "idempotency/rotation.py",
        "rows = of_day.filter(body__isnull=False)",
        "rows = of_day",
        "test_an_answer_that_is_erased_meanwhile_stays_erased",
    ),
    Mutation(
        "privacy: an operation that somebody runs is not sealed anew",
        "idempotency/rotation.py",
        "rows.filter(idle, pk=pk, context=kept)",
        "rows.filter(pk=pk, context=kept)",
        "test_an_operation_that_somebody_runs_is_left_to_him[orm]",
    ),
    Mutation(
        "privacy: an operation is sealed anew as it was read",
        "idempotency/rotation.py",
        "rows.filter(idle, pk=pk, context=kept)",
        "rows.filter(idle, pk=pk)",
        "test_an_operation_that_is_prepared_anew_meanwhile_keeps_its_new_intent[orm]",
    ),
    Mutation(
        "privacy: only what is settled is erased",
        "idempotency/privacy.py",
        "settled = keys.filter(pk__in=ids, state__in=_SETTLED)",
        "settled = keys.filter(pk__in=ids)",
        "test_a_failed_key_that_is_claimed_meanwhile_is_left_to_its_owner",
    ),
    Mutation(
        "privacy: an answer whose key is there is not erased",
        "idempotency/privacy.py",
        "answers.filter(~Exists(keys))",
        "answers",
        "test_the_answer_of_a_key_that_ended_meanwhile_stays_with_it",
    ),
    Mutation(
        "privacy: the account of an answer, functions",
        "idempotency/sql/complete_v1.sql",
        "VALUES (v_day, p_id, v_tenant,",
        "VALUES (v_day, p_id, '',",
        "test_completing_settles_the_key_and_keeps_the_answer[PostgresStore]",
    ),
    Mutation(
        "privacy: members of bodies are masked",
        "idempotency/admin/answers.py",
        "    text = mask().text(text)\n",
        "",
        "test_members_that_are_masked_are_hidden_from_whoever_may_see_bodies",
    ),
    Mutation(
        "messages: what the server refused fails the work",
        "idempotency/stores/begin.py",
        "            self._connection.set_rollback(True)",
        "            pass",
        "test_one_that_the_server_refused_fails_the_work[unreadable]",
    ),
    Mutation(
        "messages: psycopg knows of the transaction that was begun for it",
        "idempotency/stores/begin.py",
        "            session._autocommit = False",
        "            pass",
        "test_rows_are_read_one_by_one_and_locked_after_the_first_statement",
    ),
    Mutation(
        "messages: the session's own BEGIN",
        "idempotency/stores/begin.py",
        "session._get_tx_start_command().decode()",
        '"BEGIN"',
        "test_an_isolation_level_of_the_session_begins_as_psycopg_begins",
    ),
    Mutation(
        "messages: a claim is in the transaction around it",
        "idempotency/stores/statements.py",
        "                yield from session._start_query()",
        "                pass",
        "test_a_claim_that_is_the_first_of_a_transaction_is_rolled_back_with_it",
    ),
    Mutation(
        "messages: a session with an unread answer is closed",
        "idempotency/stores/statements.py",
        "            session.pgconn.finish()\n            raise\n",
        "            raise\n",
        "test_a_session_whose_answer_was_not_read_is_not_used_again",
    ),
    Mutation(
        "messages: what a wrapper sends first is in the transaction",
        "idempotency/stores/begin.py",
        "if not (innermost and plain",
        "if not (plain",
        "test_what_a_wrapper_of_the_work_sends_first_is_in_its_transaction",
    ),
    Mutation(
        "messages: psycopg's book of what is prepared",
        "idempotency/stores/statements.py",
        "return self.connection._prepared._names.get((self.name, ()))",
        "names = self.connection.__dict__.setdefault(self.name.decode(), [])\n"
        "        names += [self.connection._prepared._names.get((self.name, ()))]\n"
        "        return next((name for name in names if name), None)",
        "test_psycopg_lets_the_session_forget_after_a_rollback",
    ),
    Mutation(
        "messages: texts by their length",
        "idempotency/stores/postgres.py",
        "formats = [_BINARY] * 5 + [_TEXT, _BINARY] + [_TEXT] * 3",
        "formats = [_BINARY, _TEXT, _TEXT, _TEXT, _BINARY, _TEXT, _BINARY] + [_TEXT] * 3",
        "test_a_text_with_nul_is_refused_and_not_cut_short",
    ),
    Mutation(
        "messages: nothing is prepared behind a pooler",
        "idempotency/stores/statements.py",
        "if threshold is None or",
        "threshold = threshold or 0\n        if",
        "test_nothing_is_prepared_where_psycopg_prepares_nothing",
    ),
    Mutation(
        "blocks: what is marked for rollback is not taken for committed",
        "idempotency/stores/blocks.py",
        "done = kind is None and not connection.needs_rollback",
        "done = kind is None",
        "test_both_come_to_the_same[mark_at_once]",
    ),
    Mutation(
        "blocks: a transaction that is still open is committed",
        "idempotency/stores/blocks.py",
        "session.pgconn.transaction_status == _IDLE",
        "True",
        "test_both_come_to_the_same[write]",
    ),
    Mutation(
        "blocks: a flag of a block before",
        "idempotency/stores/blocks.py",
        "            connection.needs_rollback = False",
        "            pass",
        "test_both_come_to_the_same[write]",
    ),
    Mutation(
        "blocks: the log of queries shows both ends",
        "idempotency/stores/blocks.py",
        "if not (done and alone and self._is_plain and",
        "if not (done and alone and",
        "test_the_log_of_queries_changes_nothing_and_shows_both_ends[commit_in_a_message]",
    ),
    Mutation(
        "blocks: a savepoint that was left open inside is not passed over",
        "idempotency/stores/blocks.py",
        "if not (done and alone and",
        "if not (done and",
        "test_both_come_to_the_same[leave_a_block_open]",
    ),
    Mutation(
        "blocks: psycopg may refuse to commit",
        "idempotency/stores/blocks.py",
        "not (session._num_transactions or session._tpc)",
        "True",
        "test_both_come_to_the_same[leave_a_transaction_of_psycopg_open]",
    ),
    Mutation(
        "blocks: a flag on a proxy reaches no session",
        "idempotency/stores/blocks.py",
        '        and _has(session, Connection, "autocommit", "set_autocommit", "commit")\n',
        "",
        "test_a_session_behind_a_proxy_rolls_back_all_the_same[ours]",
    ),
    Mutation(
        "blocks: a backend that commits its own way",
        "idempotency/stores/blocks.py",
        '        and _has(connection, DatabaseWrapper, "commit", "_commit")\n',
        "",
        "test_a_backend_that_does_it_its_own_way_is_asked[_commit]",
    ),
    Mutation(
        "the engine: no claim where autocommit is off",
        "idempotency/engine.py",
        "if not (connection.in_atomic_block or _commits_by_itself(connection)):",
        "if False:",
        "test_where_autocommit_is_off_nothing_is_claimed",
    ),
    Mutation(
        "blocks: a session that died is replaced where health is checked",
        "idempotency/stores/blocks.py",
        "        connection.close_if_health_check_failed()\n",
        "",
        "test_a_session_that_died_before_the_block_is_replaced_where_health_is_checked",
    ),
    Mutation(
        "key table: what a state needs",
        "idempotency/migrations/0001_initial.py",
        'models.Q(("expires_at__isnull", False), ("state", "failed"))',
        'models.Q(("state", "failed"))',
        "test_a_state_without_what_it_needs_is_refused[failed-None-None]",
    ),
    Mutation(
        "key table: a lease while an owner runs, and at no other time",
        "idempotency/migrations/0001_initial.py",
        '                                ("lease_expires_at__isnull", True),\n',
        "",
        "test_a_state_without_what_it_needs_is_refused[in_doubt-lease3-None]",
    ),
    Mutation(
        "spans: a provider that is set later",
        "idempotency/spans.py",
        "_is_recorded(int(time.monotonic()))",
        "_is_recorded(0)",
        "test_a_provider_that_is_set_while_requests_are_served_is_noticed_within_a_second",
    ),
    Mutation(
        "messages: the session of another thread",
        "idempotency/stores/postgres.py",
        "    connection.validate_thread_sharing()\n",
        "",
        "test_the_session_of_another_thread_is_refused",
    ),
    Mutation(
        "ATOMIC_REQUESTS: the database of the keys",
        "idempotency/stores/sessions.py",
        "non_atomic_requests(using=keys_database())",
        'non_atomic_requests(using="default")',
        "test_view_is_exempt_on_the_database_of_its_keys[mixin]",
    ),
)


def main(words: list[str]) -> int:
    chosen = [each for each in MUTATIONS if all(word in each.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder) / "repository"
        copy_repository(copy)
        if _run(copy, *dict.fromkeys(_find(copy, each.test) for each in chosen)) != PASSED:
            print("The tests fail as it is: nothing can be said about guards.")
            return 1
        survived = [each for each in chosen if not _is_noticed(copy, each)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} guards are missed when they are gone.")
    return 1 if survived else 0


def copy_repository(copy: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def _is_noticed(copy: Path, mutation: Mutation) -> bool:
    path = copy / mutation.path
    text = path.read_text()
    if text.count(mutation.guard) != 1:
        print(f"CANNOT   {mutation.name}: not found exactly once in {mutation.path}", flush=True)
        return False
    path.write_text(text.replace(mutation.guard, mutation.instead))
    try:
        status = _run(copy, _find(copy, mutation.test))
    finally:
        path.write_text(text)
    # Anything but a failed test, such as a test that is not found, proves nothing.
    word = {FAILED: "noticed ", PASSED: "SURVIVED"}.get(status, f"EXIT {status}  ")
    print(f"{word} {mutation.name}", flush=True)
    return status == FAILED


def _find(copy: Path, test: str) -> str:
    """The test's id: its file and its name, with the case in brackets."""
    definition = f"def {test.partition('[')[0]}("
    (path,) = [path for path in copy.glob("tests/**/test_*.py") if definition in path.read_text()]
    return f"{path.relative_to(copy)}::{test}"


def _run(copy: Path, *tests: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
    # Of files that are gone with the copy.
    env = os.environ | {"PYTHONPYCACHEPREFIX": str(copy.parent / "bytecode")}
    finished = subprocess.run([*command, *tests], cwd=copy, env=env, capture_output=True, text=True)
    if finished.returncode not in (PASSED, FAILED):
        print(finished.stdout[-2000:], finished.stderr[-2000:])
    return finished.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
