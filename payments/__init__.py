"""The reference product: merchants, charges, refunds, transfers and a double-entry ledger."""
