"""Batch norm replaced by group norm, which takes its weights over."""

from typing import Any

import pytest
import torch
from torch import nn

import dnasa
from dnasa.core import InputError
from dnasa.models import replace_batch_norm, resnet


@pytest.mark.parametrize(
    ("layer", "groups"),
    [
        (nn.BatchNorm2d(32), 8),
        (nn.BatchNorm2d(8), 4),  # at least two channels in each
        (nn.BatchNorm2d(21), 7),
        (nn.BatchNorm2d(13), 1),
        (nn.BatchNorm2d(1), 1),
        (nn.BatchNorm3d(6, affine=False, eps=0.1), 3),
        (nn.SyncBatchNorm(16), 8),
        (nn.BatchNorm1d(32), 1),
    ],
    ids=str,
)
def test_a_layer_becomes_a_group_norm_with_its_parameters(layer: Any, groups: int) -> None:
    made: Any = replace_batch_norm(layer.double().eval())
    assert type(made) is nn.GroupNorm
    assert (made.num_groups, made.num_channels, made.eps) == (groups, layer.num_features, layer.eps)
    assert made.weight is layer.weight
    assert made.bias is layer.bias
    assert not made.training


def test_a_model_keeps_all_else_and_shared_layers_stay_shared() -> None:
    norm = nn.BatchNorm2d(8)
    inner, again = nn.Sequential(norm, nn.Conv2d(8, 8, 1), norm), nn.ModuleDict({"again": norm})
    model = nn.Sequential(inner, nn.InstanceNorm2d(8, track_running_stats=True), again)
    parameters = dict(model.named_parameters())
    assert dnasa.models.replace_batch_norm(model) is model
    assert inner[0] is inner[2] is again["again"]
    assert [type(part).__name__ for part in (*inner, model[1])] == [
        "GroupNorm",
        "Conv2d",
        "GroupNorm",
        "InstanceNorm2d",
    ]
    assert all(part is parameters[name] for name, part in model.named_parameters())


def test_a_row_no_longer_depends_on_the_others_of_its_batch() -> None:
    x = torch.randn(4, 3, 8, 8)
    model = replace_batch_norm(resnet(widths=(8, 16)))
    torch.testing.assert_close(model(x)[:1], model(x[:1]))


def test_a_layer_without_a_shape_is_refused_and_nothing_is_changed() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), nn.LazyBatchNorm2d())
    with pytest.raises(InputError, match="call it on a batch"):
        replace_batch_norm(model)
    assert isinstance(model[0], nn.BatchNorm2d)
