#!/bin/sh
# After an installation or an upgrade, for deb and rpm.
set -e

if ! getent passwd kvconn >/dev/null; then
  nologin=/usr/sbin/nologin
  [ -x "$nologin" ] || nologin=/bin/false
  group=--user-group
  if getent group kvconn >/dev/null; then group="--gid kvconn"; fi
  # shellcheck disable=SC2086 # an option and its value
  useradd --system $group --home-dir /var/lib/kvconn --no-create-home --shell "$nologin" kvconn
fi

# Nothing is started that nobody has configured. A daemon that runs is started again as the new one; engines connect to it by
# themselves, and what they had under way is recomputed.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart kvconnd.service || echo "kvconnd does not start: journalctl -u kvconnd" >&2
fi
