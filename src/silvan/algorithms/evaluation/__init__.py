"""Models judged at the sites: figures, and intervals of the difference between models."""
