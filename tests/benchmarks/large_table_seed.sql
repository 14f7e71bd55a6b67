-- A table as it stands after a month: run by large_table_seed.py, one statement at a time.
--   keys, days     how many, over how many
--   routes, shares what the keys were sent to, and how many of a thousand each gets
--
-- A key is a function of its number, so that a page can be asked for one that is known to be there.
CREATE FUNCTION bench_key(i bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN md5('key ' || i)::uuid::text;

-- Two in three belong to a third of the tenants, as in life.
CREATE FUNCTION bench_tenant(i bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN 'acct_' || floor(1000 * ((hashint8extended(i, 7) & 1048575) / 1048576.0::float8) ^ 2)::int;

CREATE FUNCTION bench_part(x text) RETURNS bytea LANGUAGE sql IMMUTABLE
    RETURN int8send(octet_length(x)) || convert_to(x, 'UTF8');

-- prefix: of a digest, as idempotency.core.keys.Scope has it; large_table_seed.py compares the two.
CREATE TABLE bench_route AS
SELECT r.route, bench_part('idempotency/scope/1') || bench_part(r.route) AS prefix,
    sum(r.share) OVER (ORDER BY r.n) - r.share AS least, sum(r.share) OVER (ORDER BY r.n) AS most
FROM unnest(%(routes)s::text[], %(shares)s::int[]) WITH ORDINALITY AS r (route, share, n);

-- Filled without its unique index, which is built afterwards: ten million random places in it would
-- take longer than all the rest.
ALTER TABLE idempotency_idempotencykey DROP CONSTRAINT idempotency_idempotencykey_digest_key;

INSERT INTO idempotency_idempotencykey (
    id, digest, key, route, tenant, fingerprint, fingerprint_version, state, owner, attempt, resumes,
    lease_expires_at, recovery_point, context, failure, created_at, completed_at, expires_at, response_day
)
SELECT i, sha256(r.prefix || bench_part(s.tenant) || bench_part(s.key)), s.key, r.route, s.tenant, sha256(int8send(i)), 1, s.state,
    gen_random_uuid(), CASE WHEN s.dice < 20 THEN 2 ELSE 1 END, 0,
    -- Of the last seconds most still run; the owners of the others are gone.
    CASE WHEN s.state = 'processing'
        THEN CASE WHEN i %% 3 = 0 THEN s.at + interval '30 seconds' ELSE clock_timestamp() + interval '2 hours' END END,
    CASE WHEN s.state = 'in_doubt' THEN 'prepared' ELSE '' END,
    CASE WHEN s.state = 'in_doubt'
        THEN '{"operation": "payments.charge", "ttl": 86400, "limit": 1048576, "prepared": 1, "context": {}}'::jsonb END,
    CASE s.state WHEN 'failed' THEN 'OperationalError' WHEN 'in_doubt' THEN 'nobody can know' ELSE '' END,
    s.at,
    CASE WHEN s.state IN ('succeeded', 'failed') THEN s.at + interval '80 milliseconds' END,
    CASE WHEN s.state IN ('succeeded', 'failed') THEN s.at + interval '31 days' END,
    (s.at AT TIME ZONE 'UTC')::date
FROM (
    SELECT i, bench_key(i) AS key, bench_tenant(i) AS tenant, dice,
        clock_timestamp() - interval '5 minutes' - (%(keys)s - i) * (interval '1 day' * %(days)s / %(keys)s) AS at,
        CASE WHEN i > %(keys)s - 400 THEN 'processing'
            WHEN i %% (%(keys)s / 40) = 7 THEN 'in_doubt'
            WHEN dice < 10 THEN 'failed' ELSE 'succeeded' END AS state
    FROM (SELECT i, hashint8extended(i, 11) & 1023 AS dice FROM generate_series(1, %(keys)s::bigint) AS i) AS n
) AS s
JOIN bench_route AS r ON abs(hashint8extended(i, 13) %% 1000) >= r.least AND abs(hashint8extended(i, 13) %% 1000) < r.most;

ALTER TABLE idempotency_idempotencykey ADD CONSTRAINT idempotency_idempotencykey_digest_key UNIQUE (digest);

INSERT INTO idempotency_storedresponse (day, key_id, status, headers, body)
SELECT k.response_day, k.id, CASE WHEN k.id %% 50 = 0 THEN 402 ELSE 201 END,
    '[["Content-Type", "application/json"], ["Location", "/v1/charges/ch_1"], ["ETag", "\"1\""]]',
    convert_to(format(
        '{"id":"ch_%%s","object":"charge","amount":%%s,"currency":"EUR","status":"succeeded","metadata":{"order":"%%s"}}',
        k.id, k.id %% 100000, k.key), 'UTF8')
FROM idempotency_idempotencykey AS k WHERE k.state = 'succeeded';

INSERT INTO idempotency_keyevent (day, key_id, at, kind, attempt, actor, reason, data)
SELECT k.response_day, k.id, k.created_at, CASE WHEN k.state = 'in_doubt' THEN 'in_doubt' ELSE 'takeover' END,
    k.attempt, '', '', '{}'
FROM idempotency_idempotencykey AS k WHERE k.attempt > 1 AND k.id %% 8 = 0 OR k.state = 'in_doubt';

INSERT INTO idempotency_outboxmessage (
    message_id, channel, destination, aggregate, payload, state, attempt, due_at, created_at, queued_at, settled_at, last_error
)
SELECT gen_random_uuid(), 'webhooks', 'we_' || m.i %% 300, 'ch_' || m.i, '{"type": "charge.succeeded"}', m.state, 1,
    m.at, m.at, m.at, CASE WHEN m.state NOT IN ('pending', 'sending') THEN m.at + interval '1 second' END,
    CASE WHEN m.state = 'delivered' THEN '' ELSE 'answered 503' END
FROM (
    SELECT i,
        clock_timestamp() - (%(keys)s / 10 - i) * (interval '1 day' * %(days)s / (%(keys)s / 10)) AS at,
        CASE WHEN i > %(keys)s / 10 - 3000 THEN 'pending'
            WHEN i %% (%(keys)s / 400) = 3 THEN 'dead' ELSE 'delivered' END AS state
    FROM generate_series(1, %(keys)s / 10) AS i
) AS m;

INSERT INTO idempotency_deliveryevent (message_id, kind, attempt, at, seconds, detail, actor)
SELECT sequence, CASE WHEN state = 'delivered' THEN 'delivered' ELSE 'failed' END, 1, created_at, 0.1, '', ''
FROM idempotency_outboxmessage;

SELECT setval(pg_get_serial_sequence('idempotency_idempotencykey', 'id'), %(keys)s);

-- What autovacuum would have done by now.
VACUUM (ANALYZE) idempotency_idempotencykey, idempotency_storedresponse, idempotency_keyevent,
    idempotency_outboxmessage, idempotency_deliveryevent;
