"""The commands that run servers. They parse options and report readiness; `web.server` binds ports and serves."""
