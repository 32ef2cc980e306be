"""Where a round's time goes: torch operations by their own time, on one thread, for one workload.

.venv/bin/python benchmarks/profile_round.py W3
"""

from __future__ import annotations

import sys

import torch
from torch.profiler import ProfilerActivity, profile

from nbafl.simulation import Simulator, build
from nbafl.simulation.workloads import find

ROUNDS = 5
NAMES = {
    "aten::_embedding_bag_forward_only": "products with sparse features",
    "aten::baddbmm": "products with Gram matrices",
    "aten::baddbmm_": "products with Gram matrices",
    "aten::bmm": "later layers, Gram matrices at first sight",
    "aten::mm": "products with dense features",
    "aten::addmm": "products with dense features",
    "aten::normal_": "noise",
    "aten::sort": "minibatch order",
}


def main() -> None:
    workload = find(sys.argv[1] if len(sys.argv) > 1 else "W3")
    torch.set_num_threads(1)
    federation = workload.federation()
    model = build(workload.model, federation.shape, federation.outputs, 0)
    run = Simulator(federation, model, workload.job(), measure={"test"})
    for _ in range(workload.warm):
        run.step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        seconds = sum(run.step().seconds for _ in range(ROUNDS))
    groups: dict[str, float] = {}
    for event in seen.key_averages():
        name = NAMES.get(event.key, "everything else in torch")
        groups[name] = groups.get(name, 0.0) + event.self_cpu_time_total / 1e6
    groups["Python between operations"] = max(0.0, seconds - sum(groups.values()))
    print(f"{workload.name}, engine {run.engine.name}, one thread: {seconds / ROUNDS * 1e3:.1f} ms a round")
    for name, own in sorted(groups.items(), key=lambda item: -item[1]):
        print(f"  {own / seconds:6.1%}  {own / ROUNDS * 1e3:8.2f} ms  {name}")


if __name__ == "__main__":
    main()
