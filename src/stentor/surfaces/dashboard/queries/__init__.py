"""The SQL of the pages: what no API route returns. Read-only; every query names the tenant."""
