"""The pages of sign-in, keys and people, and the audit of who did what."""
