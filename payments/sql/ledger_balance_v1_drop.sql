DROP TRIGGER payments_ledgerentry_balance ON payments_ledgerentry;
DROP FUNCTION payments_ledger_balance_v1();
