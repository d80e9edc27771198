"""Small work on a GPU, captured as a CUDA graph."""

from collections.abc import Callable
from typing import Any

from dnasa.core import Array


class CudaGraphs:
    """`function(*inputs)` of tensors, captured once for each combination of their shapes: launching takes longer than running.

    The output is overwritten by the next call. `function` must launch the same kernels whatever values the inputs have, and
    must not wait for the GPU.
    """

    def __init__(self, function: Callable[..., Array]):
        self.function = function
        self.captured: dict[Any, tuple[Any, list[Array], Array]] = {}

    def __call__(self, *inputs: Array) -> Array:
        self.prepare(*inputs)
        graph, static_inputs, output = self.captured[tuple(a.shape for a in inputs)]
        for static, a in zip(static_inputs, inputs, strict=True):
            static.copy_(a)
        graph.replay()
        return output

    def prepare(self, *inputs: Array) -> None:
        """Capture for inputs of these shapes unless that was done; random numbers drawn for it are drawn here."""
        if tuple(a.shape for a in inputs) not in self.captured:
            self.capture(*inputs)

    def capture(self, *inputs: Array) -> None:
        """The function is executed twice as a warmup, with all its effects."""
        import torch

        static_inputs = [a.clone() for a in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries initialize in their first calls, which cannot be captured
            for _ in range(2):
                self.function(*static_inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = self.function(*static_inputs)
        except RuntimeError:
            _end_failed_capture()
            raise
        self.captured[tuple(a.shape for a in inputs)] = graph, static_inputs, output


def _end_failed_capture() -> None:
    """After a failed capture torch's random numbers still wait for its end, and drawing one fails; that of another ends it."""
    import torch

    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")
