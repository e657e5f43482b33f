"""Dispatch: which queued task goes to which agent next, in one process or several."""
