"""Making a federation in this process, by rows or by columns."""
