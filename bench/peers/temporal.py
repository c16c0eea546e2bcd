"""Runs workflows of trivial activities on a Temporal server: `temporal.py PORT SECONDS STEPS`.

Worker and client are this process. It keeps a fixed number of runs active, each followed by the next, until the time is
over, and then waits for the active ones. Some runs before that are a warm-up. Prints one line of JSON.
"""

import asyncio
import json
import os
import sys
import time
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "bench"
RUNS_AT_ONCE = 20
WARM_UP_SECONDS = 1
#: Limits of the worker, larger than the number of runs.
CONCURRENCY = 200
#: The port opens before the namespace exists.
READY_SECONDS = 30
STEP_TIMEOUT = timedelta(seconds=60)


@activity.defn
async def trivial(step: int) -> dict:
    return {"step": step, "sum": step / 2, "ok": True}


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, steps: int) -> int:
        for step in range(1, steps + 1):
            await workflow.execute_activity(trivial, step, start_to_close_timeout=STEP_TIMEOUT)
        return steps


async def connect(port):
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            client = await Client.connect(f"127.0.0.1:{port}")
            async for _ in client.list_workflows(page_size=1):
                break
            return client
        except (RPCError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def run_for(client, name, seconds, steps):
    """How long each run took, in milliseconds, and all of them, in seconds."""
    start = time.monotonic()
    took = []

    async def line(number):
        while time.monotonic() < start + seconds:
            begun = time.monotonic()
            await client.execute_workflow(Steps.run, steps, id=f"{name}-{number}-{len(took)}", task_queue=QUEUE)
            took.append((time.monotonic() - begun) * 1000)

    await asyncio.gather(*(line(number) for number in range(RUNS_AT_ONCE)))
    return sorted(took), time.monotonic() - start


async def main(port, seconds, steps):
    client = await connect(port)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Steps],
        activities=[trivial],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=CONCURRENCY,
        max_concurrent_workflow_tasks=CONCURRENCY,
    )
    async with worker:
        await run_for(client, "warm-up", WARM_UP_SECONDS, steps)
        took, seconds = await run_for(client, "run", seconds, steps)
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1}
    percentiles = {name: took[round((len(took) - 1) * share)] for name, share in shares.items()}
    counts = {"ended": len(took), "steps": len(took) * steps}
    print(json.dumps({**counts, "seconds": seconds, "took": percentiles}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4])))
    # Threads of the SDK may still be running, and would crash the interpreter while it shuts down.
    os._exit(0)
