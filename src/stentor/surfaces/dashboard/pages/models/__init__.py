"""The pages of language models: usage and cost, budgets, calls, providers, and the playground."""
