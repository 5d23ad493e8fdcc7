"""Forests of columns that stay with their parties: encoded or encrypted labels, prediction in shares."""
