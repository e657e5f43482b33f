"""What each action of each zone does: a table of zone and action to an Action."""
