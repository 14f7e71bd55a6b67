-- Makes sure that a day of a partitioned table exists. True when it was created. Version 1: never edited after a release.
--
-- CREATE TABLE ... LIKE and ATTACH, never PARTITION OF: that one locks the parent against every reader and writer.
-- No CHECK of the day to spare ATTACH a scan: a new day is empty, DETACH ... CONCURRENTLY of PostgreSQL 15 to 18 leaves
-- one on what it takes away, and a scan would hold up nobody but other healers. PostgreSQL would parse the CHECK of an
-- attached day anew for every answer that is kept.
CREATE FUNCTION idempotency_ensure_day_v1(p_parent text, p_day date) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_child text := p_parent || '_p' || to_char(p_day, 'YYYYMMDD');
BEGIN
    FOR v_round IN 1..2 LOOP
        IF EXISTS (
            SELECT 1 FROM pg_inherits
            WHERE inhparent = to_regclass(quote_ident(p_parent)) AND inhrelid = to_regclass(quote_ident(v_child))
        ) THEN
            RETURN false;
        END IF;
        IF v_round = 1 THEN
            -- One healer at a time; the second look is made under the lock. ONLY: the children stay free.
            EXECUTE format('LOCK TABLE ONLY %I IN SHARE UPDATE EXCLUSIVE MODE', p_parent);
        END IF;
    END LOOP;
    IF to_regclass(quote_ident(v_child)) IS NULL THEN
        EXECUTE format(
            'CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_child, p_parent
        );
        EXECUTE format('COMMENT ON TABLE %I IS %L', v_child, 'idempotency: day partition');
    END IF;
    EXECUTE format(
        'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', p_parent, v_child, p_day, p_day + 1
    );
    RETURN true;
END;
$$;
