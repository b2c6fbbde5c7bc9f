//go:build !linux

package handlers

import (
	"net"
	"time"
)

// sinceReceived is not known on this system.
func sinceReceived(*net.TCPConn) time.Duration { return 0 }
