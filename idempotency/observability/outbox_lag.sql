-- The longest due message of each channel that a dispatcher could claim now. Skips from one
-- destination to the next in the index, as the claim does, and looks at so many of each: however
-- many messages wait, this reads lanes × window of them at most.
WITH RECURSIVE lane (channel, destination) AS (
    (
        SELECT m.channel, m.destination FROM idempotency_outboxmessage AS m
        WHERE m.state IN ('pending', 'sending')
        ORDER BY m.channel, m.destination LIMIT 1
    )
    UNION ALL
    SELECT following.channel, following.destination
    FROM lane CROSS JOIN LATERAL (
        SELECT m.channel, m.destination FROM idempotency_outboxmessage AS m
        WHERE m.state IN ('pending', 'sending')
            AND (m.channel, m.destination) > (lane.channel, lane.destination)
        ORDER BY m.channel, m.destination LIMIT 1
    ) AS following
)
SELECT lane.channel, max(%(now)s::timestamptz - due.due_at)
FROM (SELECT * FROM lane LIMIT %(lanes)s) AS lane
LEFT JOIN LATERAL (
    SELECT min(m.due_at) AS due_at
    FROM (
        SELECT m.* FROM idempotency_outboxmessage AS m
        WHERE m.channel = lane.channel AND m.destination = lane.destination
            AND m.state IN ('pending', 'sending') AND m.due_at <= %(now)s
        ORDER BY m.due_at, m.sequence LIMIT %(window)s
    ) AS m
    -- What waits for its predecessor is not late; a dead predecessor has an alert of its own.
    WHERE m.aggregate = '' OR NOT EXISTS (
        SELECT FROM idempotency_outboxmessage AS e
        WHERE e.channel = m.channel AND e.destination = m.destination
            AND e.aggregate = m.aggregate AND e.aggregate <> ''
            AND e.state IN ('pending', 'sending', 'dead') AND e.sequence < m.sequence
    )
) AS due ON true
GROUP BY lane.channel
