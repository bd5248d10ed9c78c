#!/bin/sh
# One command for a machine with a GPU: docs/gpu.md says what each row decides. All options are check.py's: --help.
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" "$here/check.py" "$@"
