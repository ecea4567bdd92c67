"""The package, its tests and its generator as mypy --strict sees them. Skipped (77) without mypy."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    mypy = shutil.which("mypy")
    if mypy is None:
        print("skipped: no mypy")
        return 77
    files = [*ROOT.glob("client/python/millrace/*.py"), *ROOT.glob("tests/client/python/*.py")]
    command = [mypy, "--strict", "--scripts-are-modules", "--cache-dir", os.devnull]
    paths = f"{ROOT}/client/python:{ROOT}/tests/client/python"
    environment = os.environ | {"MYPYPATH": paths}
    return subprocess.run([*command, *files, ROOT / "tools/python-tables"], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
