"""The protections of a site's rows: policy, gate and ledger, and the cryptography behind them."""
