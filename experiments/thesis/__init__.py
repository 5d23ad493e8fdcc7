"""The thesis on BOFRF, reproduced: personalised and clustered forms, and conclusions from its printed tables."""
