"""The responses and the output of `stentor session`: records and lists in `view`, items as text in `transcript`."""
