-- What each table takes, without its partitions: rows as last estimated (-1: never), all bytes, and
-- those of its indexes. The sizes are asked of the file system; no row is read.
SELECT n.name,
    -- A partitioned table repeats what its partitions say.
    CASE WHEN c.relkind = 'p' THEN -1 ELSE c.reltuples::bigint END,
    pg_total_relation_size(c.oid), pg_indexes_size(c.oid)
FROM unnest(%s::text[]) AS n (name)
JOIN pg_class AS c ON c.oid = to_regclass(quote_ident(n.name))
