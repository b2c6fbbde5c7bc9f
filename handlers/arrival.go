package handlers

import (
	"context"
	"net"
	"net/http"
	"time"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// KeepConn is for the ConnContext of the [net/http.Server] that serves the API. The connection has the time at which a
// request arrived. A replica that was stopped for some seconds finds requests that waited as long; they must not
// override changes that another replica accepted meanwhile. A connection other than TCP may have a method
// SinceReceived, or a method NetConn that returns the connection below it, like TLS.
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

// arrival returns the time at which the last part read of a request arrived at this machine; now if that is unknown.
func arrival(r *http.Request) time.Time {
	if from := InsideOf(r.Context()); from != nil {
		return from.Asked
	}
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

// resolution is the maximum error of the kernel's answer: it counts ticks of up to 10 ms.
const resolution = 20 * time.Millisecond
