"""The commands that run servers. They parse options and report readiness; `cli.server` binds ports and serves."""
