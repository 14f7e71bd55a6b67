-- One statement to claim a key. Version 1: referred to by a migration, never edited after a release.
--
-- Looking first keeps a hot key free of WAL and dead rows: INSERT ... ON CONFLICT DO UPDATE ... WHERE false costs a
-- transaction id and 100 bytes of WAL a replay, and after a lost race it returns a stale row.
-- Every write is guarded by what was read; when the guard fails, somebody was faster and the loop looks again.
--
-- p_async: the claim is a transaction of its own, so it need not wait for its fsync; the commit of the work, later in
-- the same log, flushes it. Inside an outer transaction it would make the *work's* commit asynchronous: pass false.
-- Alone in its transaction it also asks for a generic plan of the look-up of a stored response: its custom plan looks
-- cheaper for its pruned partitions, and would be planned anew each time, which is most of what a replay costs the
-- server. Both settings are made by assignments, which PL/pgSQL evaluates by itself; a PERFORM would be a query.
-- p_now: NULL, or a frozen clock for tests. clock_timestamp(), not now(): now() stands still in a transaction.
CREATE FUNCTION idempotency_claim_v1(
    p_digest bytea, p_key text, p_route text, p_tenant text, p_fingerprint bytea, p_version smallint,
    p_owner uuid, p_lease interval, p_async boolean, p_now timestamptz
) RETURNS TABLE (
    o_outcome text, o_id bigint, o_attempt integer, o_day date, o_recovery_point text, o_context jsonb,
    o_version smallint, o_lease_left interval, o_status smallint, o_headers jsonb, o_body bytea
)
LANGUAGE plpgsql AS $$
DECLARE
    v_row idempotency_idempotencykey%ROWTYPE;
    v_now timestamptz;
    v_set text;
BEGIN
    IF p_async THEN
        v_set := set_config('synchronous_commit', 'off', true);
    END IF;
    FOR v_round IN 1..5 LOOP
        v_now := coalesce(p_now, clock_timestamp());
        o_day := (v_now AT TIME ZONE 'UTC')::date;
        SELECT * INTO v_row FROM idempotency_idempotencykey AS k WHERE k.digest = p_digest;

        IF NOT FOUND THEN
            INSERT INTO idempotency_idempotencykey AS k (
                digest, key, route, tenant, fingerprint, fingerprint_version, state, owner, attempt, resumes,
                lease_expires_at, recovery_point, failure, created_at, response_day
            ) VALUES (
                p_digest, p_key, p_route, p_tenant, p_fingerprint, p_version, 'processing', p_owner, 1, 0,
                v_now + p_lease, '', '', v_now, o_day
            ) ON CONFLICT (digest) DO NOTHING RETURNING k.id INTO o_id;
            CONTINUE WHEN NOT FOUND;
            o_outcome := 'fresh'; o_attempt := 1; o_recovery_point := '';
            RETURN NEXT; RETURN;
        END IF;

        IF v_row.state IN ('succeeded', 'failed') AND v_row.expires_at <= v_now THEN
            -- A new generation, with a new id: else the day's responses would collide, and the downstream key,
            -- which is derived from the id, would fetch the old charge.
            UPDATE idempotency_idempotencykey AS k SET
                id = DEFAULT, key = p_key, route = p_route, fingerprint = p_fingerprint,
                fingerprint_version = p_version, state = 'processing', owner = p_owner, attempt = 1, resumes = 0,
                lease_expires_at = v_now + p_lease, recovery_point = '', recovery_point_at = NULL, look_up_at = NULL,
                operation = '', prepared_attempt = NULL, context = NULL, failure = '', created_at = v_now,
                completed_at = NULL, expires_at = NULL, response_day = o_day
            WHERE k.id = v_row.id AND k.owner = v_row.owner AND k.state = v_row.state
              AND k.expires_at = v_row.expires_at
            RETURNING k.id INTO o_id;
            CONTINUE WHEN NOT FOUND;
            PERFORM idempotency_record_event_v1(
                o_id, 'reused', 1, '', '', jsonb_build_object('previous_id', v_row.id), v_now);
            o_outcome := 'reused'; o_attempt := 1; o_recovery_point := '';
            RETURN NEXT; RETURN;
        END IF;

        IF v_row.fingerprint_version <> p_version THEN
            o_outcome := 'version'; o_version := v_row.fingerprint_version;
            RETURN NEXT; RETURN;
        END IF;
        IF v_row.fingerprint <> p_fingerprint THEN
            o_outcome := 'mismatch';
            RETURN NEXT; RETURN;
        END IF;

        o_id := v_row.id;
        IF v_row.state = 'succeeded' THEN
            IF p_async THEN
                v_set := set_config('plan_cache_mode', 'force_generic_plan', true);
            END IF;
            SELECT r.status, r.headers, r.body INTO o_status, o_headers, o_body
            FROM idempotency_storedresponse AS r WHERE r.day = v_row.response_day AND r.key_id = v_row.id;
            o_outcome := 'replay';
            RETURN NEXT; RETURN;
        END IF;
        IF v_row.state = 'in_doubt' THEN
            o_outcome := 'in_doubt';
            RETURN NEXT; RETURN;
        END IF;
        IF v_row.state = 'processing' AND v_row.lease_expires_at > v_now THEN
            o_outcome := 'busy'; o_lease_left := v_row.lease_expires_at - v_now;
            RETURN NEXT; RETURN;
        END IF;

        UPDATE idempotency_idempotencykey AS k SET
            state = 'processing', owner = p_owner, attempt = k.attempt + 1, lease_expires_at = v_now + p_lease,
            failure = '', completed_at = NULL, expires_at = NULL, response_day = o_day
        WHERE k.id = v_row.id AND k.owner = v_row.owner AND k.state = v_row.state
          AND k.lease_expires_at IS NOT DISTINCT FROM v_row.lease_expires_at
        RETURNING k.attempt, k.recovery_point, k.context INTO o_attempt, o_recovery_point, o_context;
        CONTINUE WHEN NOT FOUND;
        IF v_row.state = 'processing' THEN
            PERFORM idempotency_record_event_v1(
                o_id, 'takeover', o_attempt, '', '', jsonb_build_object('from', v_row.owner, 'to', p_owner), v_now);
            o_outcome := 'takeover';
        ELSE
            o_outcome := 'again';
        END IF;
        RETURN NEXT; RETURN;
    END LOOP;
    -- Five lost races in a row: somebody else is making progress, so say that the key is in use.
    o_outcome := 'busy';
    RETURN NEXT;
END;
$$;
