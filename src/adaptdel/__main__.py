"""``python -m adaptdel``: the command line, where the script is not on the path."""

from adaptdel.cli import main

if __name__ == "__main__":
    main()
