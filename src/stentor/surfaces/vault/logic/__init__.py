"""JsonLogic: rules in JSON over the facts of a note, evaluated within bounds. Pure."""
