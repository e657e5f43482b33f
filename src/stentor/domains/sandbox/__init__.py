"""The sandbox: what an agent may touch, the cage that its program runs in, and the broker of its tools."""
