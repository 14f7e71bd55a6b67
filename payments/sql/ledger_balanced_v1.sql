-- At COMMIT, every transaction that got an entry sums to zero in each currency.
-- Deferred, because a transaction is unbalanced between its first entry and its last.
-- The currency is the account's: an account never changes its own (ledger_append_only_v1.sql).

CREATE FUNCTION payments_ledger_balanced_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM payments_ledgerentry AS entry
        JOIN payments_ledgeraccount AS account ON account.id = entry.account_id
        WHERE entry.transaction_id = NEW.transaction_id
        GROUP BY account.currency
        HAVING sum(entry.amount) <> 0
    ) THEN
        RAISE EXCEPTION 'ledger transaction % does not sum to zero', NEW.transaction_id
            USING ERRCODE = 'check_violation',
                  CONSTRAINT = 'payments_ledgerentry_balanced',
                  TABLE = 'payments_ledgerentry';
    END IF;
    RETURN NULL;
END;
$$;

CREATE CONSTRAINT TRIGGER payments_ledgerentry_balanced
AFTER INSERT ON payments_ledgerentry
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION payments_ledger_balanced_v1();
