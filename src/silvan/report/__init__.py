"""The page made of a run: a summary, sentences, charts."""
