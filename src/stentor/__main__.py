"""`python -m stentor`."""

from stentor.cli import main

if __name__ == "__main__":
    main()
