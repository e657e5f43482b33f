"""Tasks: submit, read, list, cancel, approve, retry. The row is the truth."""
