-- One statement to complete a key, inside the transaction of the work. Version 1: never edited after a release.
--
-- Returns the day the response went to. A lost lease is an error (SQLSTATE ID001), so that a COMMIT sent in the same
-- message is never reached.
CREATE FUNCTION idempotency_complete_v1(
    p_id bigint, p_owner uuid, p_status smallint, p_headers jsonb, p_body bytea, p_ttl interval, p_now timestamptz
) RETURNS date
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_day date;
    v_newest date;
    v_attempt integer;
    v_tenant text;
BEGIN
    UPDATE idempotency_idempotencykey AS k SET
        state = 'succeeded', lease_expires_at = NULL, context = NULL, failure = '',
        completed_at = v_now, expires_at = v_now + p_ttl
    -- The state is an expression to the planner, so that it cannot prove the predicate of the partial index on leases:
    -- planned while the table is small, the function would go through every running key's entry, live or dead.
    WHERE k.id = p_id AND k.owner = p_owner AND (k.state || '') = 'processing'
    RETURNING k.response_day, k.attempt, k.tenant INTO v_day, v_attempt, v_tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease of idempotency key % is lost', p_id USING ERRCODE = 'ID001';
    END IF;
    -- The lock that the INSERT takes anyway, before looking: a day cannot be dropped between the two then. A DETACH can
    -- begin there all the same; the INSERT then fails, with it the work, and the retry finds the day missing.
    LOCK TABLE ONLY idempotency_storedresponse IN ROW EXCLUSIVE MODE;
    -- A day that is being detached is its own root, and one that was detached has none. This is an expression, which
    -- PL/pgSQL evaluates by itself; asking pg_inherits would be a query.
    IF pg_partition_root(to_regclass('idempotency_storedresponse_p' || to_char(v_day, 'YYYYMMDD')))
        IS DISTINCT FROM to_regclass('idempotency_storedresponse')
    THEN
        -- The payment must not fail for a missing day: the response goes to the newest day there is. Creating the day
        -- here could deadlock two healers. Catching the INSERT's error instead would cost every completion a
        -- subtransaction, which doubled its time. Without any day of ours the INSERT finds another's, or fails.
        v_newest := idempotency_newest_day_v1('idempotency_storedresponse');
        IF v_newest IS NOT NULL THEN
            v_day := v_newest;
            UPDATE idempotency_idempotencykey AS k SET response_day = v_day WHERE k.id = p_id;
            PERFORM idempotency_record_event_v1(
                p_id, 'day_missing', v_attempt, '', '', jsonb_build_object('used', v_day), v_now);
        END IF;
    END IF;
    INSERT INTO idempotency_storedresponse (day, key_id, tenant, status, headers, body)
    VALUES (v_day, p_id, v_tenant, p_status, p_headers, p_body);
    RETURN v_day;
END;
$$;
