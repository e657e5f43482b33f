"""The policy file (Cedar), encryption of stored secrets, and redaction of logs."""
