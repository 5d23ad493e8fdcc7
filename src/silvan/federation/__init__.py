"""Several tables, one model: messages, sites, and the two verbs of a coordinator."""
