"""Protocols with one guard missing, each with the promise that then breaks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.specification.protocol import Protocol
from tests.specification.rules import Bounds, Promise
from tests.specification.world import Road

SAME, OTHER = (1, 1), (1, 2)
#: One client with the operator, and two without: all that a mutation needs.
ONE_CLIENT = Bounds(lives=1, releases=0, on_its_way=0, clients=1)
LATE_CALLS = Bounds(lives=1, releases=0, clients=1)
NO_OPERATOR = Bounds(lives=1, releases=0, on_its_way=0, operator=False)
TWO_LIVES = Bounds(lives=2, releases=0, on_its_way=0, clients=1, operator=False)


@dataclass(frozen=True)
class Mutation:
    guard: str
    what: str
    breaks: Promise
    road: Road
    bounds: Bounds = NO_OPERATOR
    requests: tuple[int, int] = SAME

    @property
    def protocol(self) -> Protocol:
        return Protocol(self.road, self.requests, self.bounds).without(self.guard)


MUTATIONS = [
    Mutation(
        "completion_names_owner",
        "the completion does not name the owner",
        Promise.FENCE,
        Road.ATOMIC,
    ),
    Mutation(
        "claim_respects_lease",
        "a claim does not ask whether the lease is over",
        Promise.LEASE,
        Road.ATOMIC,
    ),
    Mutation(
        "claim_repeats_what_it_read",
        "a claim is a SELECT and then an unguarded UPDATE",
        Promise.LEASE,
        Road.ATOMIC,
    ),
    Mutation(
        "claim_respects_doubt",
        "a claim wins what is in doubt",
        Promise.DOUBT,
        Road.UNDEDUPED,
    ),
    Mutation(
        "takeover_compares_request",
        "a claim after another does not compare the fingerprint",
        Promise.SAME_REQUEST,
        Road.ATOMIC,
        requests=OTHER,
    ),
    Mutation(
        "reclaim_repeats_state",
        "the reclaim's write names no state",
        Promise.ONE_EFFECT,
        Road.ATOMIC,
    ),
    Mutation(
        "force_fail_changes_owner",
        "the operator leaves the owner's token",
        Promise.FENCE,
        Road.DEDUPED,
        ONE_CLIENT,
    ),
    Mutation(
        "force_fail_names_state",
        "the operator's write names no state",
        Promise.FINAL,
        Road.ATOMIC,
        ONE_CLIENT,
    ),
    Mutation(
        "completion_in_the_works_transaction",
        "the key is completed after the work's commit",
        Promise.ONE_EFFECT,
        Road.ATOMIC,
    ),
    Mutation(
        "downstream_key_outlives_attempts",
        "each attempt calls with a key of its own",
        Promise.ONE_EFFECT,
        Road.DEDUPED,
    ),
    Mutation(
        "reuse_is_a_new_generation",
        "a key that expired keeps its id",
        Promise.AGREES,
        Road.DEDUPED,
        TWO_LIVES,
    ),
    Mutation(
        "job_claims_before_it_resumes",
        "the job resumes without a claim",
        Promise.ONE_EFFECT,
        Road.DEDUPED,
    ),
    Mutation(
        "release_stops_at_recovery_point",
        "a release forgets an operation past its recovery point",
        Promise.ONE_EFFECT,
        Road.DEDUPED,
        Bounds(lives=1, on_its_way=0, operator=False),
    ),
    Mutation(
        "prune_spares_open_keys",
        "pruning deletes open keys too",
        Promise.KEPT,
        Road.UNDEDUPED,
    ),
    Mutation(
        "calls_again_only_where_deduped",
        "what is unknown is called again at a gateway that does not dedupe",
        Promise.ONE_EFFECT,
        Road.UNDEDUPED,
    ),
    Mutation(
        "withdraws_only_the_first_call",
        "a resumed call that was not sent withdraws the intent",
        Promise.ONE_EFFECT,
        Road.DEDUPED,
    ),
    Mutation(
        "operator_waits_for_calls",
        "the operator settles as never sent while a call may be on its way",
        Promise.ONE_EFFECT,
        Road.UNDEDUPED,
        LATE_CALLS,
    ),
    Mutation(
        "lapsed_leases_are_taken",
        "nobody takes over what a crash left",
        Promise.SETTLES,
        Road.ATOMIC,
    ),
]
