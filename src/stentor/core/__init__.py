"""The foundation of all other packages: errors, database, run log, settings, outbound HTTP."""
