-- The day-partitioned parents. Version 1: referred to by a migration, never edited after a release.
--
-- No DEFAULT partition: it forbids DETACH ... CONCURRENTLY and makes ATTACH block readers.
-- The day leads the primary keys because a unique index on a partitioned table must contain the partition column.
CREATE TABLE idempotency_storedresponse (
    key_id bigint NOT NULL,
    day date NOT NULL,
    status smallint NOT NULL,
    headers jsonb NOT NULL,
    body bytea,
    PRIMARY KEY (day, key_id)
) PARTITION BY RANGE (day);

-- A plain sequence: identity columns on partitioned tables need PostgreSQL 17.
CREATE SEQUENCE idempotency_keyevent_id_seq AS bigint;
CREATE TABLE idempotency_keyevent (
    id bigint NOT NULL DEFAULT nextval('idempotency_keyevent_id_seq'),
    day date NOT NULL,
    key_id bigint NOT NULL,
    at timestamptz NOT NULL,
    kind varchar(32) NOT NULL,
    attempt integer NOT NULL,
    actor varchar(150) NOT NULL,
    reason varchar(1000) NOT NULL,
    data jsonb NOT NULL,
    PRIMARY KEY (day, id)
) PARTITION BY RANGE (day);
ALTER SEQUENCE idempotency_keyevent_id_seq OWNED BY idempotency_keyevent.id;
CREATE INDEX idempotency_keyevent_key_id ON idempotency_keyevent (key_id);
