"""Why a forest answers as it does: what features matter over all rows, and for each row."""
