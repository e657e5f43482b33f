"""The sandbox: what an agent may touch. The check for agents that run elsewhere stands; the cage comes later."""
