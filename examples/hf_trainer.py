"""Hugging Face's Trainer with a small transformer, trained by several processes that never see each other's data.

    pip install 'dnasa[frameworks]'
    torchrun --nproc-per-node 2 examples/hf_trainer.py [EPOCHS]

The model is made from a config, so nothing is downloaded. It learns to continue sequences that count up by a step between 1
and 7 modulo 32; each node has sequences of its own.
"""

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import dnasa

TOKENS, LENGTH = 32, 16


class Counting(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, rows: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(TOKENS, (rows, 1), generator=generator)
        step = torch.randint(1, 8, (rows, 1), generator=generator)
        self.sequences = (first + step * torch.arange(LENGTH)) % TOKENS

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.sequences[i], "labels": self.sequences[i]}


class DecentralizedTrainer(Trainer):  # type: ignore[misc]
    """`network` joins the nodes. Every node's `train_dataset` is its own."""

    def __init__(self, network: dnasa.Network, **options: Any):
        super().__init__(**options, callbacks=[LocalGradients(self)])
        self.network = network

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """`state.max_steps` is the number of steps, whether `args` has epochs or steps."""
        self.decentralized = dnasa.optim.Decentralized(self.model, self.network, steps=self.state.max_steps)
        self.optimizer = self.decentralized
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Trainer must have one, the optimizer's is built in: this one schedules nothing."""
        nothing = torch.optim.SGD([torch.zeros(1)], lr=0.0)
        self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(nothing, factor=1.0)
        nothing.step()  # or torch warns that a scheduler was called first
        return self.lr_scheduler

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """With the stepsize of the optimizer, not that of the scheduler."""
        if "learning_rate" in logs:
            logs["learning_rate"] = self.decentralized.param_groups[0]["lr"]
        super().log(logs, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[dict[str, torch.Tensor]]:
        """Not distributed over the processes, as Trainer would: the data is this node's."""
        return DataLoader(self.train_dataset, self.args.per_device_train_batch_size, shuffle=True)


class LocalGradients(TrainerCallback):  # type: ignore[misc]
    """Trainer wraps the model in DistributedDataParallel, which must not average the nodes' gradients."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        dnasa.optim.local_gradients(self.trainer.model_wrapped)


def main(epochs: int) -> None:
    arguments = TrainingArguments(
        "runs/hf-trainer",
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        max_grad_norm=0.0,  # D-NASA and AdaNASA normalise their steps
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        logging_steps=64,
        report_to="none",
        disable_tqdm=True,
    )
    network = dnasa.connect()
    size = {"vocab_size": TOKENS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**size, bos_token_id=None, eos_token_id=None, use_cache=False)
    trainer = DecentralizedTrainer(
        network,
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Counting(2048, seed=network.rank),
        eval_dataset=Counting(256, seed=1000),
    )
    trainer.train()
    with trainer.decentralized.averaged():
        loss = trainer.evaluate()["eval_loss"]
    if network.rank == 0:
        print(f"{network.nodes} nodes, loss of the mean model on new sequences {loss:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
