"""What may happen next in a world: every step of everybody, under the guards of the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.specification.moves import (
    claim_breaks,
    doubted,
    effect,
    locked,
    may_arrive,
    owned,
    put,
    write,
)
from tests.specification.rules import Bounds, Guards, Promise, Step
from tests.specification.world import (
    CLIENTS,
    IDLE,
    JOB,
    NAMES,
    OPERATOR,
    Answer,
    At,
    Process,
    Road,
    Row,
    State,
    World,
    Write,
    unused_token,
)


@dataclass(frozen=True)
class Protocol:
    road: Road
    #: The fingerprints of the clients' requests.
    requests: tuple[int, int] = (1, 1)
    bounds: Bounds = field(default_factory=Bounds)
    guards: Guards = field(default_factory=Guards)

    def without(self, guard: str) -> Protocol:
        return replace(self, guards=replace(self.guards, **{guard: False}))

    def start(self) -> World:
        effects = (0,) * self.bounds.lives
        return World(None, (IDLE,) * 4, 0, 0, effects, frozenset(), (), self.bounds.releases)

    def steps(self, world: World) -> Iterator[Step]:
        for client in CLIENTS[: self.bounds.clients]:
            yield from self._client(world, client)
        yield from self._job(world)
        if self.bounds.operator:
            yield from self._operator(world)
        yield from self._surroundings(world)

    # Clients

    def _client(self, world: World, who: int) -> Iterator[Step]:
        process, row = world.processes[who], world.row
        if process.at == At.IDLE:
            if row is None or self._claimable(row, self.requests[who]):
                yield Step(f"{NAMES[who]} looks", put(world, who, Process(At.LOOKED, seen=row)))
            return
        if process.at == At.LOOKED:
            if not locked(world):
                yield self._claim(world, who, process)
        else:
            yield from self._owner(world, who, process)
        yield Step(f"{NAMES[who]} crashes", put(world, who, IDLE))

    def _claimable(self, row: Row, request: int) -> bool:
        guards = self.guards
        if row.state in (State.SUCCEEDED, State.FAILED) and row.expired:
            return True
        if row.request != request and guards.takeover_compares_request:
            return False
        if row.state == State.PROCESSING:
            if row.leased:
                return not guards.claim_respects_lease
            return guards.lapsed_leases_are_taken
        return row.state == State.FAILED or (
            row.state == State.IN_DOUBT and not guards.claim_respects_doubt
        )

    def _claim(self, world: World, who: int, process: Process) -> Step:
        seen, row, request = process.seen, world.row, self.requests[who]
        stands = seen == row or (not self.guards.claim_repeats_what_it_read and row is not None)
        if not stands or (seen is None) != (row is None):
            return Step(f"{NAMES[who]} was not the first to claim", put(world, who, IDLE))
        token = unused_token(world)
        new_key = row is None or (row.expired and self.guards.reuse_is_a_new_generation)
        generations = world.generations + new_key
        if row is None or row.expired:
            generation = generations if row is None or new_key else row.generation
            new = Row(generation, request, State.PROCESSING, token, True, life=world.life)
        else:
            new = row._replace(state=State.PROCESSING, owner=token, leased=True, answer=0)
        won = Process(At.WON, new.generation, token, new.life, new.intent)
        after = put(write(world, new)._replace(generations=generations), who, won)
        return Step(f"{NAMES[who]} claims the key", after, claim_breaks(row, request))

    # Owners: clients, and the job that resumes

    def _owner(self, world: World, who: int, process: Process) -> Iterator[Step]:
        if process.at == At.WRITTEN:
            yield self._commit(world, who, process)
        elif process.at == At.WON and self.road is Road.ATOMIC:
            yield from self._won_atomic(world, who, process)
        elif process.at == At.WON and process.key == 0:
            yield from self._prepare(world, who, process)
        elif process.at == At.WON:
            yield from self._resume(world, who, process)
        elif process.at == At.WORKED:
            yield from self._written(world, who, process, Write.COMPLETE)
        elif process.at == At.PREPARED:
            yield from self._call(world, who, process)
        elif process.at == At.ANSWERED:
            yield from self._written(world, who, process, Write.COMPLETE)
        elif process.at == At.NOT_SENT:
            yield from self._written(world, who, process, Write.WITHDRAW)
        elif process.at == At.UNKNOWN:
            yield from self._leave_open(world, who, process)
            if not self.guards.release_stops_at_recovery_point:
                yield from self._release(world, who, process)

    def _won_atomic(self, world: World, who: int, process: Process) -> Iterator[Step]:
        if self.guards.completion_in_the_works_transaction:
            worked = put(world, who, process._replace(at=At.WORKED))
            yield Step(f"{NAMES[who]} works", worked)
        else:
            worked = put(world, who, process._replace(at=At.WORKED))
            yield effect(f"{NAMES[who]} works and commits it", worked, 0, process.life)
        yield from self._release(world, who, process)
        yield from self._renew(world, who, process)
        if owned(world, process) and not locked(world):
            failed = write(world, world.row._replace(state=State.FAILED, leased=False))  # type: ignore[union-attr]
            yield Step(f"{NAMES[who]} rolls back and fails the key", put(failed, who, IDLE))

    def _release(self, world: World, who: int, process: Process) -> Iterator[Step]:
        if owned(world, process) and not locked(world) and world.releases:
            released = write(world, None)._replace(releases=world.releases - 1)
            text = f"{NAMES[who]} rolls back and releases the key"
            yield Step(text, put(released, who, IDLE))

    def _renew(self, world: World, who: int, process: Process) -> Iterator[Step]:
        row = world.row
        if row is not None and owned(world, process) and not row.leased and not locked(world):
            yield Step(f"{NAMES[who]} renews its lease", write(world, row._replace(leased=True)))

    def _prepare(self, world: World, who: int, process: Process) -> Iterator[Step]:
        yield from self._release(world, who, process)
        yield from self._renew(world, who, process)
        yield from self._written(world, who, process, Write.PREPARE)

    def _resume(self, world: World, who: int, process: Process) -> Iterator[Step]:
        again = self.road is Road.DEDUPED or not self.guards.calls_again_only_where_deduped
        if again:
            yield from self._call(world, who, process)
        else:
            unknown = process._replace(at=At.UNKNOWN)
            yield Step(f"{NAMES[who]} looks the call up in vain", put(world, who, unknown))
            if process.key in world.answered:
                found = process._replace(at=At.ANSWERED)
                yield Step(f"{NAMES[who]} looks the call up and finds it", put(world, who, found))
        if who == JOB and owned(world, process) and not locked(world):
            yield Step("the job gives the operation up", put(doubted(world), who, IDLE))

    def _call(self, world: World, who: int, process: Process) -> Iterator[Step]:
        name = NAMES[who]
        key = process.key
        if not process.first and not self.guards.downstream_key_outlives_attempts:
            key += 100
        arrived = self.arrive(world, key, process.life)
        for at, text in (
            (At.ANSWERED, "calls, and is answered"),
            (At.UNKNOWN, "calls, and the answer is lost"),
        ):
            after = put(arrived.world, who, process._replace(at=at))
            yield Step(f"{name} {text}", after, arrived.broken)
        if len(world.on_its_way) < self.bounds.on_its_way:
            late = world._replace(on_its_way=(*world.on_its_way, (key, process.life)))
            text = f"{name} calls, and gives up before the call arrives"
            yield Step(text, put(late, who, process._replace(at=At.UNKNOWN)))
        # What comes back of a later call that was not sent is that an earlier one may have been.
        certain = process.first or not self.guards.withdraws_only_the_first_call
        if certain and world.row is not None and world.row.withdrawn < self.bounds.withdrawals:
            text = f"{name} cannot send its call"
            yield Step(text, put(world, who, process._replace(at=At.NOT_SENT)))

    def arrive(self, world: World, key: int, life: int) -> Step:
        """A call arrives at the gateway."""
        if self.road is Road.DEDUPED and key in world.answered:
            return Step("", world)
        known = world._replace(answered=world.answered | {key})
        return effect("", known, key, life)

    def _leave_open(self, world: World, who: int, process: Process) -> Iterator[Step]:
        if locked(world):
            return
        name, row = NAMES[who], world.row
        if row is None or not owned(world, process):
            yield Step(f"{name} finds its lease lost", put(world, who, IDLE))
        elif self.road is Road.DEDUPED or not self.guards.calls_again_only_where_deduped:
            suspended = write(world, row._replace(leased=False))
            yield Step(f"{name} suspends the operation", put(suspended, who, IDLE))
        else:
            yield Step(f"{name} puts the operation in doubt", put(doubted(world), who, IDLE))

    def _written(self, world: World, who: int, process: Process, what: int) -> Iterator[Step]:
        """The guarded write at the end of a transaction; its commit is a step of its own."""
        if locked(world):
            return
        row = world.row
        stands = owned(world, process)
        if what == Write.COMPLETE and not self.guards.completion_names_owner and row is not None:
            stands = row.generation == process.generation and row.state == State.PROCESSING
        if not stands:
            yield Step(f"{NAMES[who]} finds its lease lost, and rolls back", put(world, who, IDLE))
            return
        written = process._replace(at=At.WRITTEN, write=what)
        text = ("", "completes the key", "writes its recovery point", "withdraws its intent")[what]
        yield Step(f"{NAMES[who]} {text}", put(world, who, written))

    def _commit(self, world: World, who: int, process: Process) -> Step:
        row = world.row
        assert row is not None, "its row is locked"
        text = f"{NAMES[who]} commits"
        if process.write == Write.PREPARE:
            key = row.generation * 10 + row.withdrawn + 1
            prepared = process._replace(at=At.PREPARED, key=key, first=True, write=Write.NOTHING)
            return Step(text, put(write(world, row._replace(intent=key)), who, prepared))
        if process.write == Write.WITHDRAW:
            free = row._replace(
                state=State.FAILED, leased=False, intent=0, withdrawn=row.withdrawn + 1
            )
            return Step(text, put(write(world, free), who, IDLE))
        settled = row._replace(state=State.SUCCEEDED, leased=False, answer=Answer.DONE)
        after = put(write(world, settled), who, IDLE)
        broken = Promise.FENCE if process.lost else None
        if self.road is Road.ATOMIC and self.guards.completion_in_the_works_transaction:
            done = effect(text, after, 0, process.life)
            after, broken = done.world, done.broken or broken
        if after.effects[row.life] != 1:
            broken = broken or Promise.AGREES
        return Step(text, after, broken)

    # The job: reclaims, resumes, prunes

    def _job(self, world: World) -> Iterator[Step]:
        process, row = world.processes[JOB], world.row
        if process.at == At.IDLE:
            if row is not None:
                yield from self._job_begins(world, row)
            return
        if process.at == At.LOOKED:
            if not locked(world):
                yield self._job_writes(world, process)
        else:
            yield from self._owner(world, JOB, process)
        yield Step("the job crashes", put(world, JOB, IDLE))

    def _job_begins(self, world: World, row: Row) -> Iterator[Step]:
        settled = row.state in (State.SUCCEEDED, State.FAILED)
        prunable = row.expired if settled else not self.guards.prune_spares_open_keys
        if prunable and not locked(world):
            broken = None if settled else Promise.KEPT
            yield Step("the job prunes the key", write(world, None), broken)
        if row.state == State.PROCESSING and not row.leased and self.guards.lapsed_leases_are_taken:
            if row.intent and not self.guards.job_claims_before_it_resumes:
                as_if = Process(At.WON, row.generation, row.owner, row.life, row.intent)
                yield Step("the job resumes without a claim", put(world, JOB, as_if))
            else:
                looked = Process(At.LOOKED, seen=row)
                yield Step("the job sees that the lease is over", put(world, JOB, looked))

    def _job_writes(self, world: World, process: Process) -> Step:
        seen, row = process.seen, world.row
        assert seen is not None
        stands = row == seen
        if not self.guards.reclaim_repeats_state and not seen.intent and row is not None:
            stands = (row.generation, row.owner) == (seen.generation, seen.owner)
        if row is None or not stands:
            return Step("the job was too late", put(world, JOB, IDLE))
        token = unused_token(world)
        if not seen.intent:
            failed = row._replace(state=State.FAILED, owner=token, leased=False)
            return Step("the job reclaims the key", put(write(world, failed), JOB, IDLE))
        taken = row._replace(owner=token, leased=True)
        won = Process(At.WON, row.generation, token, row.life, row.intent)
        return Step("the job takes the operation over", put(write(world, taken), JOB, won))

    # The operator

    def _operator(self, world: World) -> Iterator[Step]:
        process, row = world.processes[OPERATOR], world.row
        if process.at == At.IDLE:
            if row is not None and row.state in (State.PROCESSING, State.IN_DOUBT):
                looked = Process(At.LOOKED, seen=row)
                yield Step("the operator looks", put(world, OPERATOR, looked))
            return
        if not locked(world):
            if process.at == At.LOOKED:
                yield from self._operator_writes(world, process)
            elif process.at == At.SETTLING:
                yield from self._written(world, OPERATOR, process, process.write)
        if process.at == At.WRITTEN:
            yield self._commit(world, OPERATOR, process)
        yield Step("the operator gives up", put(world, OPERATOR, IDLE))

    def _operator_writes(self, world: World, process: Process) -> Iterator[Step]:
        seen, row = process.seen, world.row
        assert seen is not None
        if row is None or not self._stands_as_seen(row, seen):
            return  # he is told so, and gives up
        token = unused_token(world) if self.guards.force_fail_changes_owner else row.owner
        over = State.PROCESSING if row.intent else State.FAILED
        free = row._replace(state=over, owner=token, leased=False)
        text = "the operator frees the key"
        yield Step(text, put(write(world, free, ends=True), OPERATOR, IDLE))
        yield self._end_for_good(world, row, token)
        if row.intent:
            yield from self._settle(world, row)

    def _stands_as_seen(self, row: Row, seen: Row) -> bool:
        same = (row.generation, row.owner) == (seen.generation, seen.owner)
        if not self.guards.force_fail_names_state:
            return same
        return same and (row.state, row.intent) == (seen.state, seen.intent)

    def _end_for_good(self, world: World, row: Row, token: int) -> Step:
        ended = row._replace(state=State.SUCCEEDED, owner=token, leased=False, answer=Answer.ENDED)
        changed = row.answer == Answer.DONE and not row.expired
        after = put(write(world, ended, ends=True), OPERATOR, IDLE)
        return Step("the operator ends the key for good", after, Promise.FINAL if changed else None)

    def _settle(self, world: World, row: Row) -> Iterator[Step]:
        token = unused_token(world)
        taken = write(world, row._replace(state=State.PROCESSING, owner=token, leased=True))
        at = Process(At.SETTLING, row.generation, token, row.life, row.intent)
        if row.intent in world.answered:
            text = "the operator takes over to settle it as done"
            done = at._replace(write=Write.COMPLETE)
            yield Step(text, put(taken, OPERATOR, done))
            return
        idle = row.state == State.IN_DOUBT or not row.leased
        left = row.withdrawn < self.bounds.withdrawals
        waited = not may_arrive(world, row.intent) or not self.guards.operator_waits_for_calls
        if idle and left and waited:
            text = "the operator takes over to settle it as never sent"
            yield Step(text, put(taken, OPERATOR, at._replace(write=Write.WITHDRAW)))

    # Time, and the network

    def _surroundings(self, world: World) -> Iterator[Step]:
        row = world.row
        if row is not None:
            if row.state == State.PROCESSING and row.leased:
                yield Step("the lease runs out", write(world, row._replace(leased=False)))
            settled = row.state in (State.SUCCEEDED, State.FAILED) and not row.expired
            if settled and world.life + 1 < self.bounds.lives:
                over = write(world, row._replace(expired=True))
                yield Step("the key expires", over._replace(life=world.life + 1))
        for call in world.on_its_way:
            rest = world._replace(on_its_way=tuple(c for c in world.on_its_way if c != call))
            arrived = self.arrive(rest, *call)
            yield Step("the call arrives late", arrived.world, arrived.broken)
            yield Step("the call is lost on its way", rest)
