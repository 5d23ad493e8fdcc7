"""Models evaluated at the sites: metrics, intervals of the difference between models, and column effects."""
