"""The whole MNIST grid of Figure 3 as one batch on a GPU: step time and profile.

python -m benchmarks.grid_gpu
"""

import time

import torch

from dnasa import solve, topology
from dnasa.reproduce import fig3
from dnasa.tasks.tasks import classification


def main(steps: int = 60) -> None:
    graph = topology.paper_random()
    problem = classification("mnist", 8, loss_scale="1/n", device="cuda", train_metrics=False)
    small = classification("mnist", 8, loss_scale="1/n", train_metrics=False)
    a = solve(problem, graph, ["dsgt", "dnasa"], eta=[1, 5], steps=20, evaluate=[20])
    b = solve(small, graph, ["dsgt", "dnasa"], eta=[1, 5], steps=20, evaluate=[20])
    print("GPU against CPU after 20 steps, largest relative difference:", float((a.x.cpu() - b.x).norm() / b.x.norm()))
    for names in (["dsgt"], ["dsgd", "dsgt", "dasagt", "dnasa"]):
        began = time.perf_counter()
        result = solve(problem, graph, names, eta=fig3.ETAS, steps=steps, seed=range(10), evaluate=[steps])
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        print(
            f"{len(result.runs)} runs: {1e3 * seconds / steps:.2f} ms a step, {seconds / steps * 3000:.0f} s for 3,000 steps"
        )
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    ) as p:
        solve(problem, graph, ["dsgd", "dsgt", "dasagt", "dnasa"], eta=fig3.ETAS, steps=5, seed=range(10), evaluate=[0])
        torch.cuda.synchronize()
    print(p.key_averages().table(sort_by="self_cuda_time_total", row_limit=12, max_name_column_width=50))


if __name__ == "__main__":
    main()
