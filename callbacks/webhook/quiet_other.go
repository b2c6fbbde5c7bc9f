//go:build !unix

package webhook

import (
	"net"
	"syscall"
)

// rawOf is nil: here it is not known how to ask.
func rawOf(net.Conn) syscall.RawConn { return nil }

// quiet holds for all connections.
func quiet(syscall.RawConn) bool { return true }
