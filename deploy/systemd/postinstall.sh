#!/bin/sh
# After the installation. An upgrade restarts the service, if it runs: Debian names the version before, RPM counts to 2.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if { [ "$1" = configure ] && [ -n "$2" ]; } || [ "$1" = 2 ]; then
		systemctl try-restart carillon.service
	fi
fi
