//go:build !linux

package handlers

import (
	"net"
	"time"
)

// sinceReceived reports that the time is unknown on this system.
func sinceReceived(*net.TCPConn) time.Duration { return 0 }
