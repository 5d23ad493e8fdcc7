"""Reports of runs: a summary as plain data, sentences, charts, and one HTML page."""
