"""Commands that look at tables: their columns, and what is odd in them."""
