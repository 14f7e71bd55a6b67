DROP TRIGGER payments_ledgerentry_balanced ON payments_ledgerentry;
DROP FUNCTION payments_ledger_balanced_v1();
