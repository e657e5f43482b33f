"""The advisory locks that processes on one PostgreSQL database take."""

SCHEMA = 0x53_74_65_6E_74_6F_72_01
"""Held while the schema is upgraded, so that it is done once."""
SERVING = 0x53_74_65_6E_74_6F_72_02
"""Shared by all who write as long as they are connected; whoever copies the database has it alone."""
