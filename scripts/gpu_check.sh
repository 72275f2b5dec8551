#!/usr/bin/env bash
# All checks that need a GPU, in at most eight minutes and without a network. Ends with one table, and fails if any did.
#
#   scripts/gpu_check.sh [WHEELS]
#
# Needs a Python (3.11 or newer; $PYTHON names it, else python3) that has PyTorch with CUDA. WHEELS is a folder of wheels
# of the packages it lacks, setuptools 77 or newer among them. Everything is installed into a temporary folder and goes
# with it.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheels=${1:+$(cd "$1" && pwd)}
python=${PYTHON:-python3}
limit=450 # seconds for the tests

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$scratch/site" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TORCHINDUCTOR_CACHE_DIR="$scratch/kernels"

install() { "$python" -m pip install --quiet --no-deps --no-index --no-warn-script-location --target "$scratch/site" "$@"; }

if [ -n "$wheels" ]; then
    # Only what is not there: a second copy of PyTorch's own dependencies could break it.
    "$python" - "$wheels" >"$scratch/missing" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    try:
        version(wheel.name.partition("-")[0])
    except PackageNotFoundError:
        print(wheel)
PYTHON
    mapfile -t missing <"$scratch/missing"
    [ "${#missing[@]}" -eq 0 ] || install "${missing[@]}"
fi
# A copy, since building writes into the folder it builds from.
mkdir "$scratch/checkout"
cp -r "$checkout"/{attnbench,mechanisms,tasks,tests,pyproject.toml,README.md,LICENSE} "$scratch/checkout"
if compgen -G "$wheels/setuptools-*.whl" >/dev/null; then
    install --find-links "$wheels" "$scratch/checkout"
else
    install --no-build-isolation "$scratch/checkout"
fi

cd "$scratch/checkout"
"$python" -c '
import sys, torch
seen = torch.cuda.is_available()
print("Python", sys.version.split()[0], "PyTorch", torch.__version__, torch.cuda.get_device_name() if seen else "no GPU")
sys.exit(not seen)'
# An interrupted pytest still prints the table of what it did.
timeout --signal=INT --kill-after=20 "$limit" "$python" -m pytest -m gpu tests/gpu -p no:cacheprovider --tb=short -q
