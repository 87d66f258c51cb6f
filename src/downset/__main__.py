"""`python -m downset` is the command line."""

from downset.cli import main

if __name__ == "__main__":
    main()
