"""The sandbox: access checks, the isolation of command agents, and (in `broker`) the tools that they may call."""
