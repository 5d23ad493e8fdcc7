"""What is known of a study's tables: what looks odd in them, and which rows were learnt from."""
