"""Batch norm replaced by group norm and weight standardization, which take over all parameters."""

from typing import Any

import pytest
import torch
from torch import nn

import dnasa
from dnasa.problems.models import replace_batch_norm, resnet


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
    assert dnasa.problems.models.replace_batch_norm(model) is model
    assert inner[0] is inner[2] is again["again"]
    kinds = [type(part).__name__ for part in (*inner, model[1])]
    assert kinds == ["GroupNorm", "Conv2d", "GroupNorm", "InstanceNorm2d"]
    assert all(part is parameters[name] for name, part in model.named_parameters())


def test_the_convolution_before_it_has_standardized_filters() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1, bias=False, padding_mode="circular")
    weight, x = conv.weight, torch.randn(2, 3, 5, 5)
    with torch.no_grad():
        weight *= torch.rand(4, 1, 1, 1) + 0.5
        weight += 0.1
    model: Any = replace_batch_norm(nn.Sequential(conv, nn.BatchNorm2d(4)))
    assert model[0].weight is weight
    rows = weight.detach().flatten(1)
    variance = rows.var(1, correction=0, keepdim=True) + 1e-6
    literal = (rows - rows.mean(1, keepdim=True)) / (rows.shape[1] * variance) ** 0.5
    twin = nn.Conv2d(3, 4, 3, padding=1, bias=False, padding_mode="circular")
    twin.load_state_dict({"weight": literal.view_as(weight)})
    torch.testing.assert_close(model[0](x), twin(x), rtol=1e-4, atol=1e-5)


def test_other_convolutions_stay_as_they_are() -> None:
    single = nn.Conv2d(4, 4, 1, groups=4)  # a filter of one number
    model: Any = nn.Sequential(
        single, nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.BatchNorm2d(8, affine=False), nn.Conv2d(8, 2, 1)
    )
    replace_batch_norm(model)
    kinds = [type(part).__name__ for part in model]
    assert kinds == ["Conv2d", "GroupNorm", "StandardizedConv2d", "ReLU", "GroupNorm", "Conv2d"]


def test_the_residual_net_with_group_norm_has_the_same_parameters() -> None:
    torch.manual_seed(0)
    batch = resnet(widths=(8, 16))
    torch.manual_seed(0)
    group = resnet(widths=(8, 16), norm="group")
    for (name, ours), (other, theirs) in zip(group.named_parameters(), batch.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(ours, theirs)
    assert {"GroupNorm", "StandardizedConv2d", "Conv2d"} <= {type(part).__name__ for part in group.modules()}
