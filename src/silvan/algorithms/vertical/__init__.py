"""Vertical forests, whose columns stay with their parties: encoded or encrypted labels, prediction in shares."""
