"""The models of `dnasa.problems.models`, and `replace_batch_norm` for your own."""

from dnasa.problems.models import gpt, lenet, lstm, perceptron, replace_batch_norm, resnet

__all__ = ["gpt", "lenet", "lstm", "perceptron", "replace_batch_norm", "resnet"]
