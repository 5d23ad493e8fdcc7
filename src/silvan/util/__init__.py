"""Small tools that know nothing of trees: whole files, SQLite files, threads, numbers as text."""
