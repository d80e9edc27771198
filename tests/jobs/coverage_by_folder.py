"""The statements of each folder of src that tests execute; reads what `coverage json` writes. Not a test."""

import json
import sys
from collections import Counter
from pathlib import Path

executed, statements = Counter[str](), Counter[str]()
for path, file in json.load(sys.stdin)["files"].items():
    parts = Path(path).parts
    inside = parts[parts.index("dnasa") + 1 :]
    for folder in (inside[0] if len(inside) > 1 else "files outside folders", "total"):
        executed[folder] += file["summary"]["covered_lines"]
        statements[folder] += file["summary"]["num_statements"]
for folder in sorted(statements, key=lambda folder: (folder == "total", folder)):
    print(f"{folder:24}{statements[folder]:7,} statements{100 * executed[folder] / statements[folder]:6.1f} % executed")
