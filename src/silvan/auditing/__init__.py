"""Privacy audits: attacks on a release, each with what its attacker knows and a measure of what it gains."""
