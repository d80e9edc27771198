"""Random changes of training images: `augment(inputs, generator) -> inputs`, drawn from the generator alone."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def flip_and_shift(images: Tensor, generator: torch.Generator, most: int = 4) -> Tensor:
    """Each image (b, channels, height, width) mirrored or not, and shifted by up to `most` pixels; 0 outside."""
    b, channels, height, width = images.shape

    def draw(high: int) -> Tensor:
        return torch.randint(high, (b, 1), generator=generator, device=images.device)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=images.device)

    rows = count(height) + draw(2 * most + 1)
    columns = torch.where(draw(2) == 1, count(width), width - 1 - count(width)) + draw(2 * most + 1)
    image, channel = count(b)[:, None, None, None], count(channels)[:, None, None]
    return pad(images, (most,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
