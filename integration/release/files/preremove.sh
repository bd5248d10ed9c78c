#!/bin/sh
# Before a removal or an upgrade, for deb ("remove", "upgrade") and rpm (how many versions stay).
set -e

case "${1:-}" in
remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl disable --now kvconnd.service
  fi
  ;;
esac
