"""A study at a site: its rows, what its owner reads before approving it, and the results that the site gets."""
