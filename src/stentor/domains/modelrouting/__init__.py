"""`model: "auto"`: which of the configured models answers a request, learned from errors, grades, cost and time."""
