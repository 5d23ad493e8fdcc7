"""The thesis on BOFRF, made again: personalised and clustered forms, and what follows from its printed tables."""
