"""What `make protos` makes of proto/; change the protos, not this."""
