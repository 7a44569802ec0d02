"""Random schedules against the whole engine, judged by an oracle that knows no schedule.

A *script* is a workload as plain data: sizes, a device's latencies and faults, what clients ask and when they
leave, what the application does meanwhile. `generate` makes one from a seed, `drive` runs it in virtual time
on the hashed model, `judge` compares what every client heard with what its request says alone, `inspection`
looks into the engine after its messages and at its end, `shrink` reduces a failing script to a small one.

    python -m tests.checker --seeds 0:5000        a few thousand workloads a minute
    python -m tests.checker --replay failed.json  the same script again
"""
