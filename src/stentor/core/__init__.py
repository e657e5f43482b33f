"""What everything else stands on: errors, database, run log, clock, settings, outbound HTTP."""
