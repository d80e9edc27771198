"""How the tests start real processes: mpirun beside this Python, torchrun on a free port, or forks that have torch already."""

import atexit
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
JOBS = Path(__file__).parent
PATHS = [path for path in sys.path if Path(path).is_relative_to(JOBS.parent)]  # jobs import what the tests import
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]),
}
MPIRUN = [str(BIN / "mpirun"), "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
PATIENCE = 600  # seconds; on a busy machine starting processes takes long


def wait_until(condition: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Until the condition holds; fails when the process that should fulfil it has ended, or after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"waited {PATIENCE} s"
        time.sleep(0.02)


def has_lines(file: Path, more_than: int) -> bool:
    """Of a file that another process writes."""
    return file.exists() and len(file.read_text().splitlines()) > more_than


def free_port() -> int:
    """A port that the system gives to nobody else for a minute: a connection has just ended there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address), server.accept()[0]:
            return address[1]


def launch(engine: str, processes: int, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python with these words, in processes of mpirun or torchrun."""
    if engine == "mpi":
        command = [*MPIRUN, "-n", str(processes), sys.executable]
    else:
        where = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *where]
    return subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT, cwd=cwd
    )


def stdout_of(done: subprocess.CompletedProcess[str]) -> str:
    """Of processes that have succeeded."""
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


FORKS = multiprocessing.get_context("forkserver")  # forks of one process without threads, which has imported torch
FORKS.set_forkserver_preload(
    ["torch._dynamo", "dnasa.cli", "dnasa.data", "dnasa.optim", "dnasa.networks.sites", "matplotlib.pyplot", "sklearn.datasets"]
)


def run_script(script: Path | str, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python script words`."""
    return run_forks([{}], script, words, cwd)


def launch_script(
    engine: str, processes: int, script: Path | str, *words: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """In processes of mpirun, or for torch in forks with the variables that torchrun sets."""
    if engine == "mpi":
        return launch(engine, processes, script, *words, cwd=cwd)
    common = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
    common["MASTER_PORT"] = free_port()
    ranks = [common | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return run_forks(ranks, script, words, cwd)


def run_forks(
    variables: Sequence[dict[str, object]], script: Path | str, words: Sequence[Any], cwd: Path | None
) -> subprocess.CompletedProcess[str]:
    """A process for each dictionary of environment variables."""
    words = [str(script), *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [[Path(folder, f"{stream}-{i}") for stream in ("out", "err")] for i in range(len(variables))]
        started = [
            FORKS.Process(target=run_as_main, args=(words, cwd or os.getcwd(), added, paths))
            for added, paths in zip(variables, outputs, strict=True)
        ]
        for process in started:
            process.start()
        failed = wait_for(started)
        texts = ["".join(path.read_text() for path in paths) for paths in zip(*outputs, strict=True)]
    return subprocess.CompletedProcess(words, failed, *texts)


def wait_for(started: Sequence[BaseProcess]) -> int:
    """Until all have ended; when one fails, the others are killed. Returns its exit code."""
    end = time.monotonic() + PATIENCE
    try:
        while (running := [p for p in started if p.is_alive()]) and not any(p.exitcode for p in started):
            if not connection.wait([p.sentinel for p in running], timeout=end - time.monotonic()):
                raise TimeoutError(f"{len(running)} of {len(started)} processes ran for more than {PATIENCE} s.")
        return next((p.exitcode for p in started if p.exitcode), 0)
    finally:
        for process in started:
            process.kill()
            process.join()


def run_as_main(words: list[str], cwd: Path | str, variables: dict[str, object], outputs: list[Path]) -> None:
    """What Python does with a script, from its start to its exit."""
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(cwd)
    os.environ.update(ENVIRONMENT | {name: str(value) for name, value in variables.items()})
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
