"""`python -m stepahead`. This package installs as `stepahead`, so its `__main__` is the project's."""

from stepahead.engine.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
