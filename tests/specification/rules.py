"""What must hold, what the code demands for it, and how much of the endless is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tests.specification.world import World


class Promise(StrEnum):
    """What must hold in every world, and for every step."""

    ONE_EFFECT = "one effect while a key lives"
    FINAL = "a stored answer never changes"
    AGREES = "the answer agrees with the effect"
    FENCE = "nobody completes whose lease was taken or ended"
    LEASE = "a lease that runs is not taken"
    DOUBT = "what is in doubt does not run again"
    KEPT = "an open key is not pruned"
    SAME_REQUEST = "under one key runs one request"
    SETTLES = "every key can still be settled"


class Step(NamedTuple):
    """Something that happens: who does what, and the world after it."""

    text: str
    world: World
    #: A promise that the step itself breaks.
    broken: Promise | None = None


@dataclass(frozen=True)
class Guards:
    """What the code demands. A mutation takes one away."""

    completion_names_owner: bool = True
    claim_respects_lease: bool = True
    claim_repeats_what_it_read: bool = True
    claim_respects_doubt: bool = True
    takeover_compares_request: bool = True
    reclaim_repeats_state: bool = True
    force_fail_changes_owner: bool = True
    force_fail_names_state: bool = True
    completion_in_the_works_transaction: bool = True
    downstream_key_outlives_attempts: bool = True
    reuse_is_a_new_generation: bool = True
    job_claims_before_it_resumes: bool = True
    release_stops_at_recovery_point: bool = True
    prune_spares_open_keys: bool = True
    calls_again_only_where_deduped: bool = True
    withdraws_only_the_first_call: bool = True
    operator_waits_for_calls: bool = True
    lapsed_leases_are_taken: bool = True


@dataclass(frozen=True)
class Bounds:
    """How much of what would go on for ever. Crashes, pauses and retries are not bounded."""

    lives: int = 2
    releases: int = 1
    withdrawals: int = 1
    on_its_way: int = 1
    clients: int = 2
    operator: bool = True
