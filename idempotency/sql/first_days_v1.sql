-- The days around the installation; create_partitions keeps them ahead from then on.
-- Yesterday too: a transaction that claimed before midnight may complete after it.
SELECT idempotency_ensure_day_v1(parent, ((clock_timestamp() AT TIME ZONE 'UTC')::date + ahead))
FROM unnest(ARRAY['idempotency_storedresponse', 'idempotency_keyevent']) AS parent, generate_series(-1, 14) AS ahead;
