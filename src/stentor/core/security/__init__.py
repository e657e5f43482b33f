"""Policy file, secrets at rest, secrets in logs."""
