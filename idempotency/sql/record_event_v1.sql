-- Writes one line of the audit trail. Version 1: never edited after a release.
--
-- A missing day must not stop a payment: the line then goes to the newest day there is, under its true time.
CREATE FUNCTION idempotency_record_event_v1(
    p_key_id bigint, p_kind text, p_attempt integer, p_actor text, p_reason text, p_data jsonb, p_at timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_day date := (p_at AT TIME ZONE 'UTC')::date;
    v_constraint text;
BEGIN
    INSERT INTO idempotency_keyevent (day, key_id, at, kind, attempt, actor, reason, data)
    VALUES (v_day, p_key_id, p_at, p_kind, p_attempt, p_actor, p_reason, p_data);
EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    -- A missing partition is a check violation with no constraint to name.
    IF v_constraint <> '' THEN RAISE; END IF;
    v_day := idempotency_newest_day_v1('idempotency_keyevent');
    IF v_day IS NULL THEN RAISE; END IF;
    INSERT INTO idempotency_keyevent (day, key_id, at, kind, attempt, actor, reason, data)
    VALUES (v_day, p_key_id, p_at, p_kind, p_attempt, p_actor, p_reason, p_data);
END;
$$;
