"""The live page of a folder (``silvan web``): studies, progress, approvals, ledger, results, start and stop."""
