"""The tool broker: checks, records and executes the tool calls of a sandboxed agent over one Unix socket per run."""
