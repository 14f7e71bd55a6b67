-- What is posted stays posted: a mistake is corrected by another transaction.

CREATE FUNCTION payments_ledger_append_only_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME,
              CONSTRAINT = TG_NAME;
END;
$$;

CREATE TRIGGER payments_ledgerentry_append_only
BEFORE UPDATE OR DELETE ON payments_ledgerentry
FOR EACH ROW EXECUTE FUNCTION payments_ledger_append_only_v1();

CREATE TRIGGER payments_ledgertransaction_append_only
BEFORE UPDATE OR DELETE ON payments_ledgertransaction
FOR EACH ROW EXECUTE FUNCTION payments_ledger_append_only_v1();

CREATE TRIGGER payments_ledgeraccount_identity
BEFORE UPDATE OF kind, merchant_id, currency ON payments_ledgeraccount
FOR EACH ROW
WHEN (OLD.kind <> NEW.kind
      OR OLD.currency <> NEW.currency
      OR OLD.merchant_id IS DISTINCT FROM NEW.merchant_id)
EXECUTE FUNCTION payments_ledger_append_only_v1();
