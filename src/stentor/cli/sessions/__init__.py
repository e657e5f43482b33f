"""The responses and the output of `stentor session`."""
