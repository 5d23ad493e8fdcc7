"""Sites, messages and the two verbs of a coordinator, ask and total."""
