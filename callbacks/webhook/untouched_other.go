//go:build !unix

package webhook

import (
	"net"
	"syscall"
)

// rawOf returns nil: on this system, connections are not asked.
func rawOf(net.Conn) syscall.RawConn { return nil }

// untouched holds for all connections.
func untouched(syscall.RawConn) bool { return true }
