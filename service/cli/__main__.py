"""Run the command line: `python -m service.cli`."""

from service.cli.main import main

if __name__ == "__main__":
    main()
