"""Messages packed, unpacked and mixed by the kernels for GPUs, against the torch code on the CPU, bit for bit.

With `TRITON_INTERPRET=1` the kernels run without a GPU, in Triton's interpreter.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dnasa.channels import codecs, modular, quantised

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.skipif(DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"), reason="needs a GPU")

Work = Callable[[str], list[Tensor]]  # with tensors on this device
both = pytest.mark.parametrize("bits", [4, 8])


def extreme(width: int) -> np.ndarray:
    """Five runs of two nodes: zeros, numbers that differ little or much, tiny or huge, halves of a scale, some not finite."""
    rng = np.random.default_rng(0)
    sizes, spreads = np.array([0, 1, 1e-41, 1, 1e30, 1, 1, 1e-30, 1, 1]), np.array([0, 0, 1, 5, 5, 0, 0, 9, 30, 0])
    with np.errstate(over="ignore"):
        a = np.exp(spreads[:, None] * rng.standard_normal((10, width))) * rng.standard_normal((10, width))
        a = (sizes[:, None] * a).astype(np.float32)
    a[5] = np.resize(np.arange(-255, 256) / 2, width)
    a[6] = np.resize(np.arange(-15, 15) / 2 * 1.0078125, width)
    a[9, :: width // 6 + 1] = np.resize([3e38, 0, np.nan, np.inf, -np.inf], len(a[9, :: width // 6 + 1]))
    return a.reshape(5, 2, width)


def scales_and_codes(payload: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The scales as numbers, since processors write NaN in different ways, and the codes."""
    end = 2 * -(-width // 256)
    return payload[..., :end].contiguous().view(torch.bfloat16).float(), payload[..., end:]


@pytest.fixture
def assert_same_bits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    def check(work: Work) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "compiled", None)
            expected = work("cpu")
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "compiled", None)
            if DEVICE == "cpu":
                patch.setattr(codecs, "suits_triton", lambda a, dtype: dtype == torch.float32)
                for module in (codecs, modular):
                    patch.setattr(module, "array", Tensor.contiguous)
            found = work(DEVICE)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours.cpu().numpy(), theirs.numpy(), strict=True)

    return check


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_triton_is_used_for_float32_numbers_on_a_gpu() -> None:
    a = torch.ones(3, device=DEVICE)
    assert codecs.kernels(a, torch.float32).__name__ == "dnasa.channels.gpu"
    assert codecs.kernels(a, torch.float64) is codecs.kernels(a[:0], torch.float32) is None


@both
@pytest.mark.parametrize("width", [1, 2, 5, 255, 256, 257, 511, 3001])
def test_triton_packs_and_unpacks_quantised_numbers(
    width: int, bits: int, assert_same_bits: Callable[[Work], None]
) -> None:
    codec, rng = quantised(bits), np.random.default_rng(0)
    a = extreme(2 * width)[..., ::2]
    any_bytes = rng.integers(0, 256, (3, int(codec.row_bytes(a))), np.uint8)

    def work(device: str) -> list[Tensor]:
        numbers, others = torch.from_numpy(a).to(device), torch.from_numpy(any_bytes).to(device)
        payload = codec.encode(numbers, 0)
        return [*scales_and_codes(payload, width), *(codec.decode(each, numbers, 0) for each in (payload, others))]

    assert_same_bits(work)


@both
def test_triton_rounds_halves_of_every_scale_and_their_neighbours_as_division_does(
    bits: int, assert_same_bits: Callable[[Work], None]
) -> None:
    top = 2 ** (bits - 1) - 1
    scales = np.arange(128, 256, dtype=np.float32)[:, None] / 128  # all that bfloat16 has from 1 to 2
    halves = (np.arange(2 * top, dtype=np.float32) - top + 0.5) * scales
    near = [halves, np.nextafter(halves, np.float32(1000)), np.nextafter(halves, np.float32(-1000))]
    firsts = [top * scales] * 3 + [top * (scales + 1 / 256)]  # the last are halfway between two scales
    a = np.concatenate([np.concatenate(parts, 1) for parts in zip(firsts, [*near, halves], strict=True)])
    assert_same_bits(lambda device: [quantised(bits).encode(torch.from_numpy(a).to(device), 0)])


@both
@pytest.mark.parametrize(
    ("width", "offset"), [(1, 0.3), (31, 1 - 2**-30), (32, 0.5), (33, 0.3), (70, 0.7), (2001, 0.3)]
)
def test_triton_packs_and_mixes_residues(
    width: int, offset: float, bits: int, assert_same_bits: Callable[[Work], None]
) -> None:
    rng, grid = np.random.default_rng(0), modular.Grid(bits, offset, 1.7)
    y, shape = extreme(2 * width)[..., ::2], (5, 2, modular.block_count(width))
    largest = (np.exp(5 * rng.standard_normal(shape)) * rng.exponential(1, shape)).astype(np.float32)
    largest[[0, 3]], largest[4, 0, 0], largest[4, 1, 0] = 0, np.nan, -np.float32("nan")
    any_bytes = rng.integers(0, 256, (5, 2, modular.row_bytes(width, bits)), np.uint8)

    def work(device: str) -> list[Tensor]:
        numbers, seen, others = (torch.from_numpy(a).to(device) for a in (y, largest, any_bytes))
        own = modular.encode(grid, numbers, seen)
        alone, apart = ([(np.array([0.3, 0.7]), theirs)] for theirs in (own.flip(1), others))
        mixed = [modular.mix(grid, numbers, seen, own, links) for links in (alone, apart, alone + apart)]
        return [own, *(part for each in mixed for part in each)]

    assert_same_bits(work)
