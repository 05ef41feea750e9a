#!/usr/bin/env bash
# Checks and times the copy path or the codecs on this machine's GPU; prints one JSON object.
#
# usage: bench/gpu_check.sh [copies|codecs] [--size-mib N]
# PYTHON names an interpreter that has numpy and torch with CUDA, and Numba for codecs
# (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
deadline_s=300
module=bench.gpu_check

case ${1:-} in
copies) shift ;;
codecs) module=bench.gpu_codecs && shift ;;
esac
if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "$python has no torch that sees a GPU; name another interpreter in PYTHON" >&2
    exit 2
fi
PYTHONPATH=src exec timeout "$deadline_s" "$python" -m "$module" "$@"
