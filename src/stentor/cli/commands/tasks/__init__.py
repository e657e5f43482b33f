"""Commands about tasks: submit and follow them, their steps and replays, schedules and sessions."""
