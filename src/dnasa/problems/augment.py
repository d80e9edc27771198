"""Random changes of training images: `augment(inputs, generator) -> inputs`, drawn from the generator alone."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["flip_and_shift"]


def flip_and_shift(images: Tensor, generator: torch.Generator, most: int = 4, flip: bool = True) -> Tensor:
    """Each image shifted at random, 0 outside; half of them mirrored.

    Args:
        images: A batch `(b, channels, height, width)`.
        generator: What the changes are drawn from.
        most: The largest shift, in pixels.
        flip: Whether to mirror images.
    """
    b, channels, height, width = images.shape

    def draw(high: int) -> Tensor:
        return torch.randint(high, (b, 1), generator=generator, device=images.device)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=images.device)

    rows = count(height) + draw(2 * most + 1)
    columns = count(width) + draw(2 * most + 1)
    if flip:
        columns = torch.where(draw(2) == 1, columns, width - 1 + 2 * most - columns)
    image, channel = count(b)[:, None, None, None], count(channels)[:, None, None]
    return pad(images, (most,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
