"""The dashboard service: what tasks and agents do, read from the stores; and work that is streamed."""
