package handlers

import (
	"context"
	"net"
	"net/http"
	"time"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// KeepConn is to be the ConnContext of the [net/http.Server] that serves the API. The connection tells when a request
// arrived: a replica that was stopped for some seconds finds requests that have waited as long, and must not put them
// before changes that were accepted elsewhere meanwhile. A connection other than TCP may tell it by a method
// SinceReceived, or have the connection that it is made over by a method NetConn, as TLS has.
func KeepConn(ctx context.Context, conn net.Conn) context.Context {
	for {
		over, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = over.NetConn()
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// arrival is when the last part of a request that was read arrived at this machine; now if that is not known.
func arrival(r *http.Request) time.Time {
	now := time.Now()
	switch conn := r.Context().Value(connKey{}).(type) {
	case *net.TCPConn:
		return now.Add(-max(0, sinceReceived(conn)-resolution))
	case interface{ SinceReceived() time.Duration }:
		return now.Add(-conn.SinceReceived())
	default:
		return now
	}
}

// resolution is how far off the kernel's answer may be: it counts ticks, of up to 10 ms each.
const resolution = 20 * time.Millisecond
