"""Generated from proto/ by `make protos`; change the protos, not this."""
