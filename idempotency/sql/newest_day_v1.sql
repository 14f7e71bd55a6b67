-- The newest attached day of a partitioned table, or NULL. Version 1: never edited after a release.
CREATE FUNCTION idempotency_newest_day_v1(p_parent text) RETURNS date
LANGUAGE sql STABLE AS $$
    SELECT max(to_date(right(child.relname, 8), 'YYYYMMDD'))
    FROM pg_inherits AS link JOIN pg_class AS child ON child.oid = link.inhrelid
    WHERE link.inhparent = to_regclass(quote_ident(p_parent))
      AND NOT link.inhdetachpending
      AND child.relname ~ ('^' || p_parent || '_p[0-9]{8}$')
$$;
