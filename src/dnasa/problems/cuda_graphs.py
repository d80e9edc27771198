"""Small work on a GPU, captured as a CUDA graph."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # the memory that the graph reads
    output: Tensor


class CudaGraphs:
    """`function(*inputs)` of tensors, captured once for each combination of their shapes: launching takes longer than running.

    The output is overwritten by the next call. `function` must launch the same kernels whatever values the inputs have, and
    must not wait for the GPU.
    """

    def __init__(self, function: Callable[..., Tensor]):
        self.function = function
        self.captured: dict[tuple[torch.Size, ...], Captured] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.prepare(*inputs)
        captured = self.captured[_shapes(inputs)]
        for memory, given in zip(captured.inputs, inputs, strict=True):
            memory.copy_(given)
        captured.graph.replay()
        return captured.output

    def prepare(self, *inputs: Tensor) -> None:
        """Capture for inputs of these shapes unless that was done; the function is executed twice before, as a warmup."""
        if _shapes(inputs) in self.captured:
            return
        memory = [each.clone() for each in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries initialize in their first calls, which cannot be captured
            for _ in range(2):
                self.function(*memory)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = self.function(*memory)
        except RuntimeError:
            # torch refuses to draw random numbers until a capture ends: an empty one does
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                torch.zeros(1, device="cuda")
            raise
        self.captured[_shapes(inputs)] = Captured(graph, memory, output)


def _shapes(inputs: tuple[Tensor, ...]) -> tuple[torch.Size, ...]:
    return tuple(each.shape for each in inputs)
