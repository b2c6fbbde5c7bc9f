package handlers

import (
	"context"
	"net"
	"time"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// KeepConn is to be the ConnContext of the [net/http.Server] that serves the API. By its connection a request's arrival is told: a
// replica that was stopped for some seconds finds requests that have waited as long, and must not put them before what was
// accepted elsewhere meanwhile.
func KeepConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// age is how long ago the last of a request arrived at this machine; zero where that can't be told.
func age(ctx context.Context) time.Duration {
	conn, ok := ctx.Value(connKey{}).(*net.TCPConn)
	if !ok {
		return 0
	}
	return max(0, sinceReceived(conn)-resolution)
}

// resolution is how far off the kernel's answer may be: it counts ticks, of up to 10 ms each.
const resolution = 20 * time.Millisecond
