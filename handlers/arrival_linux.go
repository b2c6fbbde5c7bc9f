package handlers

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// sinceReceived asks the kernel for the time since a connection last received data (tcp(7), TCP_INFO).
func sinceReceived(conn *net.TCPConn) (since time.Duration) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			since = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return since
}
