"""The product is killed at every statement and every network call, and has to recover.

::

    python -m tests.kill_points               every point of every path, each recovered from
    python -m tests.kill_points --every 7     a sample
    python -m tests.kill_points --path refund

A first run of a path, which nobody disturbs, counts its points: before and after each SQL
statement, COMMIT and ROLLBACK, each HTTP call, and each command to Valkey. Then each point gets a
process of its own, forked from one that has loaded the product and opened nothing, which kills
itself there (SIGKILL). Then the lease is over in the database, and another process recovers: at
every other point the jobs come before the client's retry, and at the others the retry is first.
What must hold then is in `paths.py`. The gateway is a process of its own, with a ledger on disk.
"""
