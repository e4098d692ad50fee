"""`python -m app`: the same program as `copath`."""

from app.cli import main

if __name__ == "__main__":
    main()
