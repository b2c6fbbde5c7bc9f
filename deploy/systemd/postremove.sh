#!/bin/sh
# After the removal.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
