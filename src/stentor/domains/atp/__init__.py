"""ATP, the message format between agents: header fields, text format, JSON format, bodies. No I/O; see `messaging`."""
