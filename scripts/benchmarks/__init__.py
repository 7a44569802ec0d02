"""Benchmarks, one module each: `HELP`, `add_arguments(parser)` and `run(arguments)`.

Each prints a table and writes the same numbers as JSON to `out/`. They are no tests: they say how fast, on
the machine at hand, beside the best alternative in the same run; what must hold is in tests.
"""
