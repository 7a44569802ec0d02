"""The subcommands of `python -m stepahead`, one module each.

A module offers `HELP` (one line), `add_arguments(parser)` and `run(arguments) -> exit status`. Importing it
must be cheap: whatever needs torch is imported inside `run`, so that `--help` answers at once.
"""
