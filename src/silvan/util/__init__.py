"""Small tools without any knowledge of trees: whole files, SQLite files, threads, numbers as text."""
