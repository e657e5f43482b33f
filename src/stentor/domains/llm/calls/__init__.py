"""Calls to providers: their guard with budgets, prices, limits and traces, and the record of them."""
