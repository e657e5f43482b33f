"""The actions of each zone: every module provides a table from (zone, action type) to a ZoneAction."""
