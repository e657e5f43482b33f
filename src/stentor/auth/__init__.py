"""Authentication of callers: API keys, principals, permissions, and signed receipts (`authority`)."""
