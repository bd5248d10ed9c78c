#!/bin/sh
# Builds the stand-in for the CUDA driver: build.sh LIBRARY [further flags and sources for gcc].
# This is the one place that knows its sources. FAKECUDA_PARTS names the folders whose sources it takes: "." is the driver,
# "ptx" the interpreter of kernels. CC is another compiler.
set -eu
library=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
for part in ${FAKECUDA_PARTS-. ptx}; do
  for source in "$here/$part"/*.c; do set -- "$@" "$source"; done
done
exec "${CC:-gcc}" -std=gnu11 -O2 -Wall -Wextra -Werror -Wmissing-prototypes -fPIC -shared -Wl,-soname,libcuda.so.1 \
  -o "$library" "$@" -lpthread
