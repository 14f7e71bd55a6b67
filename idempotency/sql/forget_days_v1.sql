-- The way back to no tables: days that are detached at the moment would keep the parents from being dropped.
DO $$
DECLARE
    v_day regclass;
BEGIN
    FOR v_day IN
        SELECT child.oid FROM pg_class AS parent
        JOIN pg_class AS child
          ON child.relnamespace = parent.relnamespace AND child.relkind = 'r' AND NOT child.relispartition
         AND child.relname ~ ('^' || parent.relname || '_p[0-9]{8}$')
         AND obj_description(child.oid, 'pg_class') = 'idempotency: day partition'
        WHERE parent.oid IN (to_regclass('idempotency_storedresponse'), to_regclass('idempotency_keyevent'))
    LOOP
        EXECUTE format('DROP TABLE %s', v_day);
    END LOOP;
END;
$$;
