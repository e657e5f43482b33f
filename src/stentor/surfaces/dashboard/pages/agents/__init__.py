"""The pages of agents: the list, one agent, forms that change it, and the review of its updates."""
