-- One statement to complete a key, inside the transaction of the work. Version 1: never edited after a release.
--
-- Returns the day the response went to, or NULL when the lease is lost: the caller must then roll back.
CREATE FUNCTION idempotency_complete_v1(
    p_id bigint, p_owner uuid, p_status smallint, p_headers jsonb, p_body bytea, p_ttl interval, p_now timestamptz
) RETURNS date
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_day date;
    v_constraint text;
BEGIN
    UPDATE idempotency_idempotencykey AS k SET
        state = 'succeeded', lease_expires_at = NULL, context = NULL, failure = '',
        completed_at = v_now, expires_at = v_now + p_ttl
    WHERE k.id = p_id AND k.owner = p_owner AND k.state = 'processing'
    RETURNING k.response_day INTO v_day;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    BEGIN
        INSERT INTO idempotency_storedresponse (day, key_id, status, headers, body)
        VALUES (v_day, p_id, p_status, p_headers, p_body);
    EXCEPTION WHEN check_violation THEN
        GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
        -- A missing partition is a check violation with no constraint to name. The payment must not fail for it:
        -- the response goes to the newest day there is. Creating the day here could deadlock two healers.
        IF v_constraint <> '' THEN RAISE; END IF;
        v_day := idempotency_newest_day_v1('idempotency_storedresponse');
        IF v_day IS NULL THEN RAISE; END IF;
        INSERT INTO idempotency_storedresponse (day, key_id, status, headers, body)
        VALUES (v_day, p_id, p_status, p_headers, p_body);
        UPDATE idempotency_idempotencykey AS k SET response_day = v_day WHERE k.id = p_id;
    END;
    RETURN v_day;
END;
$$;
