-- A merchant account's balance follows its entries, and the check constraint
-- payments_ledgeraccount_balance_not_negative then refuses an overdraft at once.
-- Accounts without an owner are skipped: every charge touches one of them, and a kept balance
-- would be one row that all charges queue for.

CREATE FUNCTION payments_ledger_balance_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE payments_ledgeraccount
    SET balance = balance + NEW.amount
    WHERE id = NEW.account_id AND merchant_id IS NOT NULL;
    RETURN NULL;
END;
$$;

CREATE TRIGGER payments_ledgerentry_balance
AFTER INSERT ON payments_ledgerentry
FOR EACH ROW EXECUTE FUNCTION payments_ledger_balance_v1();
