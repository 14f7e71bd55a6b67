-- Claim a batch of due messages in one statement. What it decides with:
--   channels   what this process can deliver: channel, lease, messages at once for a destination
--   busy       destinations that get less than that: `room` is what is left, 0 for none at all
--   most       the size of the batch;  owner  who claims;  moment  a frozen clock, or null
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce(%(moment)s::timestamptz, clock_timestamp()) AS now
),
-- Every destination with unsent messages, by skipping from one to the next in the index: what ten
-- thousand messages for one of them cost is one step.
lane AS MATERIALIZED (
    SELECT c.channel, walk.destination, c.lease, coalesce(b.room, c.at_once) AS room
    FROM unnest(%(channels)s::text[], %(leases)s::interval[], %(at_once)s::int[])
        AS c (channel, lease, at_once)
    CROSS JOIN LATERAL (
        WITH RECURSIVE step (destination) AS (
            (
                SELECT m.destination FROM idempotency_outboxmessage AS m
                WHERE m.channel = c.channel AND m.state IN ('pending', 'sending')
                ORDER BY m.destination LIMIT 1
            )
            UNION ALL
            SELECT (
                SELECT m.destination FROM idempotency_outboxmessage AS m
                WHERE m.channel = c.channel AND m.state IN ('pending', 'sending')
                    AND m.destination > step.destination
                ORDER BY m.destination LIMIT 1
            )
            FROM step WHERE step.destination IS NOT NULL
        )
        SELECT step.destination FROM step WHERE step.destination IS NOT NULL
    ) AS walk
    LEFT JOIN unnest(%(busy_channels)s::text[], %(busy_destinations)s::text[], %(rooms)s::int[])
        AS b (channel, destination, room)
        ON b.channel = c.channel AND b.destination = walk.destination
    WHERE coalesce(b.room, c.at_once) > 0
),
-- The longest due of each, and the first unfinished one of the same aggregate before it, if any.
due AS MATERIALIZED (
    SELECT lane.*, m.*,
        CASE WHEN m.aggregate <> '' THEN (
            SELECT e.state FROM idempotency_outboxmessage AS e
            WHERE e.channel = lane.channel AND e.destination = lane.destination
                AND e.aggregate = m.aggregate AND e.aggregate <> ''
                AND e.state IN ('pending', 'sending', 'dead')
                AND e.sequence < m.sequence
            ORDER BY e.sequence LIMIT 1
        ) END AS held_by
    FROM lane CROSS JOIN LATERAL (
        SELECT m.sequence, m.aggregate, m.state, m.due_at
        FROM idempotency_outboxmessage AS m
        WHERE m.channel = lane.channel AND m.destination = lane.destination
            AND m.state IN ('pending', 'sending') AND m.due_at <= (SELECT now FROM clock)
        ORDER BY m.due_at, m.sequence LIMIT %(window)s
    ) AS m
),
-- The first of each destination, then the second of each, and so on.
chosen AS MATERIALIZED (
    SELECT ranked.sequence, ranked.lease
    FROM (
        SELECT due.*,
            row_number() OVER (PARTITION BY channel, destination ORDER BY due_at, sequence) AS turn
        FROM due WHERE held_by IS NULL
    ) AS ranked
    WHERE turn <= room ORDER BY turn, due_at LIMIT %(most)s
),
-- Looked at again under its row lock: another dispatcher may have claimed it meanwhile. (An array,
-- here and below, keeps the planner from reading the whole table for a join that it misjudges.)
locked AS MATERIALIZED (
    SELECT m.sequence, m.state AS was
    FROM idempotency_outboxmessage AS m
    WHERE m.sequence = ANY (ARRAY(SELECT chosen.sequence FROM chosen))
        AND m.state IN ('pending', 'sending') AND m.due_at <= (SELECT now FROM clock)
    FOR UPDATE OF m SKIP LOCKED
),
claimed AS (
    UPDATE idempotency_outboxmessage AS m
    SET state = 'sending', owner = %(owner)s, attempt = m.attempt + 1,
        due_at = clock.now + chosen.lease
    FROM clock, locked JOIN chosen USING (sequence)
    WHERE m.sequence = ANY (ARRAY(SELECT chosen.sequence FROM chosen))
        AND m.sequence = locked.sequence
    RETURNING m.sequence, m.message_id, m.channel, m.destination, m.aggregate, m.payload,
        m.attempt, m.created_at, m.queued_at, locked.was, clock.now
),
-- Where those that have to wait for their predecessor fill the window, nobody behind them would be
-- seen: they are due later. Their predecessor's end makes the next one due at once, and if it did
-- so meanwhile, due_at is another.
crowd AS MATERIALIZED (
    SELECT counted.sequence, counted.due_at, counted.held_by
    FROM (SELECT due.*, count(*) OVER (PARTITION BY channel, destination) AS seen FROM due) AS counted
    WHERE counted.seen >= %(window)s AND counted.held_by IS NOT NULL
),
movable AS MATERIALIZED (
    SELECT m.sequence, crowd.held_by
    FROM idempotency_outboxmessage AS m JOIN crowd USING (sequence)
    WHERE m.sequence = ANY (ARRAY(SELECT crowd.sequence FROM crowd))
        AND m.state = 'pending' AND m.due_at = crowd.due_at
    FOR UPDATE OF m SKIP LOCKED
),
moved AS (
    UPDATE idempotency_outboxmessage AS m
    SET due_at = clock.now
        + CASE movable.held_by WHEN 'dead' THEN interval '10 minutes' ELSE interval '1 minute' END
    FROM clock, movable
    WHERE m.sequence = ANY (ARRAY(SELECT crowd.sequence FROM crowd))
        AND m.sequence = movable.sequence
    RETURNING m.sequence
)
SELECT claimed.*, counted.moved
FROM (SELECT count(*) AS moved FROM moved) AS counted LEFT JOIN claimed ON true
