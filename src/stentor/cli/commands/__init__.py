"""The commands of `stentor`, one module per group. A module is imported when one of its commands is used."""
