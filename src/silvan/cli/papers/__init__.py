"""Commands about publications: their tables and figures, made again."""
