//go:build !unix

package webhook

import (
	"net"
	"syscall"
)

// rawOf returns nil: on this system, connections are not asked.
func rawOf(net.Conn) syscall.RawConn { return nil }

// quiet holds for all connections.
func quiet(syscall.RawConn) bool { return true }
