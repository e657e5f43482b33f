"""Random programs of steps, effects, waits and children, with a fault at each commit that the service makes for them.

`programs` makes and runs them, `commits` fails the commits, `installation` is a service, its worker, the people and the
world outside in one process, `cases` runs a program with its faults and checks what came of it.
"""
