"""ATP, the form of messages between agents: enumerations, the wire form, the JSON form, bodies. Pure."""
