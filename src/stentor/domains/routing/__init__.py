"""Routing: admission, ranking and the decision record. Pure but for a look at memory."""
