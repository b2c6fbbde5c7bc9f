#!/bin/sh
# Before the removal, but not before an upgrade: Debian says so, RPM counts to 0.
set -e
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
	systemctl disable --now carillon.service
fi
