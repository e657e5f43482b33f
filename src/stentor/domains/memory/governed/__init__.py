"""The governed memory: each call needs a verified authority, and each call and denial is in the run log."""
