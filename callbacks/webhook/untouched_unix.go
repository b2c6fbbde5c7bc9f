//go:build unix

package webhook

import (
	"net"
	"syscall"
)

// rawOf returns the system's side of a connection, or nil if it has none.
func rawOf(c net.Conn) syscall.RawConn {
	if own, is := c.(*conn); is {
		c = own.Conn
	}
	s, is := c.(syscall.Conn)
	if !is {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// untouched reports whether an idle connection has neither received bytes nor ended. Received bytes are lost. It is
// true if the state is unknown.
func untouched(raw syscall.RawConn) bool {
	if raw == nil {
		return true
	}
	nothing := false
	err := raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		nothing = err == syscall.EAGAIN //nolint:errorlint // a system call's error is returned as it is
		return true                     // without waiting
	})
	return err == nil && nothing
}
