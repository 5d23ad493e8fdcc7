"""What stands between a site's rows and everybody else: policy, gate, ledger; and the cryptography behind it."""
