"""The gateway to providers of language models: three wire formats, usage, budgets, evidence."""
