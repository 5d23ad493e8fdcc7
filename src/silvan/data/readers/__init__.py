"""Where tables come from: CSV text, queries to databases, and the passwords these need."""
