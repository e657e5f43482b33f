"""What all pages stand on: the door, the gateway's calls, rows, live changes, templates and files."""
