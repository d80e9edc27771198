"""The options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from dnasa.rules import RULES
from dnasa.rules.registry import ETA, PARAMETER_FREE

MEANING = "; ".join(f"{name} {made.formula}" for name, made in (ETA | PARAMETER_FREE).items())
DataName = Annotated[
    str,
    typer.Option(
        "--data",
        help="digits, mnist, a9a, miniboone, covertype, cifar10, shakespeare, or a file or folder of your own: .csv, .tsv, "
        ".txt, .npz, .npy, .parquet, .xlsx, LIBSVM, images by class (`dnasa data FILE` shows how it is read).",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="Target column of your own table, by name or by position from 0; several labels as a,b,c; or the .npy file that "
        "has the labels."
    ),
]
Columns = Annotated[
    str | None, typer.Option(help="Columns of your own table that are inputs, as a,b,c. Default: all but the target.")
]
DropColumns = Annotated[str | None, typer.Option(help="Columns of your own table to leave out, as a,b,c.")]
IdColumn = Annotated[
    str | None, typer.Option(help="Column that names the rows: not an input, and repeated in predictions.")
]
Separator = Annotated[
    str | None,
    typer.Option(help="Separator of your own table: one character, tab or whitespace. Default: detected."),
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="The first line of your own table is a row. Default: detected.")
]
Task = Annotated[
    str | None,
    typer.Option(help="classification, regression or multilabel. Default: what the target column looks like."),
]
NoStandardise = Annotated[
    bool,
    typer.Option(
        "--no-standardise", help="Leave the inputs of your own data as they are, with any mean and deviation."
    ),
]


def full_name(partition: str) -> str:
    """For titles and configs: with the number that is used."""
    from dnasa.data.partitions import full_name

    return full_name(partition)


PartitionName = Annotated[
    str,
    typer.Option(
        "--partition",
        callback=full_name,
        help="How rows are divided among nodes: iid, contiguous, by_label, dirichlet(0.1); dirichlet alone is dirichlet(0.5).",
    ),
]
PartitionSeed = Annotated[
    int | None, typer.Option(help="Give all runs the partition of this seed. Default: each seed draws its own.")
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="linear, mlp:128,64,relu,dropout=0.1 (hidden widths, activation, dropout), lenet, resnet:16,group (first width, "
        "norm), gpt:2,96,64 (layers, width, context) or your own, my_file.py:make. Default: what suits the data.",
    ),
]
LossScale = Annotated[str, typer.Option(help="Factor on the training loss; 1/n gives the paper's stepsize axis.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
ProblemName = Annotated[
    str | None,
    typer.Option("--problem", help="Instead of data, a synthetic problem: least_squares, spike or robust_regression."),
]
Nodes = Annotated[int, typer.Option(help="Number of nodes.")]
TopologyName = Annotated[
    str,
    typer.Option(
        help="The graph: ring, ladder, complete, random (p = 0.8), star, path, grid, torus, hypercube, exponential, one_peer, "
        "paper_random; directed_ring and directed_exponential for rules for directed graphs (sgp, push_dsgt); or one of a "
        "plugin."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Mixing weights: laplacian, metropolis, max_degree or lazy. Default: 1/3 on the ring, else laplacian."
    ),
]
WeightsBy = Annotated[
    str | None,
    typer.Option(help="rows: nodes count in proportion to their rows. Default: all the same."),
]
ClassWeight = Annotated[
    str | None,
    typer.Option(help="balanced: in the training loss, each class counts the same, regardless of its number of rows."),
]
RuleName = Annotated[str, typer.Option(help=f"Method: {', '.join(RULES)}, or a rule of a plugin.")]
RuleNames = Annotated[
    str,
    typer.Option(
        help=f"Methods, separated by commas, from: {', '.join(RULES)}, and rules of plugins; each may name its schedule, as "
        "in dsgd:constant,dsgt:cosine,dnasa. dnasa and adanasa need no stepsize."
    ),
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        help="Python file that registers rules, graphs or compressors of your own (register of dnasa.rules, dnasa.topology, "
        "dnasa.channels); may be given several times."
    ),
]
Eta = Annotated[
    float | None,
    typer.Option(
        help="Stepsize, for rules that need one; dnasa and adanasa need none. What it means depends on the schedule, with n "
        f"nodes, T steps and t = 0, 1, ...: {MEANING}."
    ),
]
Etas = Annotated[
    str,
    typer.Option(
        help="Stepsizes for the rules that need one, separated by commas. What they mean depends on the schedule, with n "
        f"nodes, T steps and t = 0, 1, ...: {MEANING}."
    ),
]
Extend = Annotated[
    bool,
    typer.Option(
        "--extend", help="Where the best stepsize is at an edge of the grid, continue the grid there, at most 8 times."
    ),
]
ComparedMetric = Annotated[
    str | None,
    typer.Option(help="Column of the history to compare. Default: test_accuracy, else test_rmse, else test_loss."),
]
XAxis = Annotated[
    str,
    typer.Option(
        "--x",
        help="Curves against steps, epochs, bytes, messages or seconds (the chosen runs are then repeated, each by itself).",
    ),
]
PictureFormat = Annotated[
    str, typer.Option("--format", help="Formats of the figures, separated by commas: png, pdf, svg.")
]
Latex = Annotated[bool, typer.Option("--latex", help="Also write the table as LaTeX (booktabs), table.tex in --out.")]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Stepsize schedule: diminishing (default) or fixed; constant or cosine for rules with a stepsize (cosine is "
        "the default of `dnasa train` for rules with momentum); parameter-free or parameter-free-fixed for dsgt; "
        "theorem-fixed for gt_nsgdm; "
        "linear (default) or averaged for adanasa."
    ),
]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        help="Stop once a metric has reached a value, such as grad_norm=0.01; several must all be reached.",
        metavar="METRIC=NUMBER",
    ),
]
Batch = Annotated[
    int | None, typer.Option(help="Samples per node and step. Default: 32 for data, 1 for least squares.")
]
Seed = Annotated[
    int, typer.Option(help="Seed of the samples, the starting point and the partition; the first of several.")
]
Seeds = Annotated[int, typer.Option(help="How many seeds to run side by side: seed, seed + 1, ...")]
Evaluate = Annotated[int | None, typer.Option(help="Evaluate every N steps. Default: 50 times or fewer.")]
Rounds = Annotated[int, typer.Option(help="Exchanges per step.")]
Dtype = Annotated[str | None, typer.Option(help="float32 or float64. Default: float32 for data, else float64.")]
Engine = Annotated[
    str | None,
    typer.Option(
        help="simulated, mpi or torch. Default: how this process was started (mpirun, torchrun, or by itself)."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds without an answer after which a process counts as lost.")]
MessageDtype = Annotated[
    str | None,
    typer.Option(
        "--message-dtype", "--wire", help="Send messages in 16 bits: bfloat16 or float16. Default: as they are."
    ),
]
Compress = Annotated[
    str | None,
    typer.Option(
        help="Compress messages with memory (CHOCO): topk:0.01 or randk:0.01 (the share of numbers sent), 8bit, 4bit, sign, "
        "or one of a plugin; `sign,gamma=0.2` replaces the default gamma."
    ),
]
Overlap = Annotated[
    bool,
    typer.Option("--overlap", help="Exchange while the next gradient is computed, for rules that can (dnasa, dasagt)."),
]
Trace = Annotated[Path | None, typer.Option(help="Write a timeline of the first steps for Chrome or Perfetto (JSON).")]
ShardDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with node-0.csv (or another format, or a folder), node-1.csv, ... and perhaps test.csv: a process reads "
        "only the files of its own nodes."
    ),
]
LocalAccuracy = Annotated[bool, typer.Option("--local-accuracy", help="Also test every node's own model at the end.")]
Drop = Annotated[float, typer.Option(help="Simulated fault: each link fails in a step with this probability.")]
Away = Annotated[float, typer.Option(help="Simulated fault: each node is unreachable for this share of the time.")]
Stale = Annotated[int, typer.Option(help="Simulated fault: messages arrive up to this many steps late.")]
Survive = Annotated[
    bool, typer.Option("--survive", help="Continue without processes that die or hang (mpirun --with-ft ulfm ...).")
]
Out = Annotated[Path | None, typer.Option(help="Folder for config, history, checkpoints, iterates and figures.")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Write a checkpoint every N steps; `dnasa resume FOLDER` continues from it.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the run that is in the folder.")]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write the history for TensorBoard, into OUT/tensorboard.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
LogJson = Annotated[
    bool,
    typer.Option(
        "--log-json", help="Print nothing but JSON lines: one per evaluation and run, with speed and remaining time."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="Repeat the run of this config.json; options given on the command line take precedence."),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Execute the Python files that a config, a study or a trained model names."),
]
