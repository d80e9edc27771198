"""How the tests start real processes: mpirun beside this Python, or torchrun on a free port."""

import os
import socket
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
MPIRUN = [str(BIN / "mpirun"), "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


PATIENCE = 600  # seconds; on a busy machine starting processes takes long


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(engine, processes, *words, cwd=None):
    if engine == "mpi":
        command = [*MPIRUN, "-n", str(processes), sys.executable]
    else:
        where = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *where]
    return subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT, cwd=cwd
    )
