package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// relay passes MongoDB messages between clients and FerretDB, each client over its own connection. At any moment at
// most one command on each database is inside FerretDB.
type relay struct {
	socket string // FerretDB's Unix socket
	data   string // the directory of its databases

	// A gate is held from before a request on its database is passed on until the whole reply has arrived.
	mu    sync.Mutex
	gates map[string]*gate
}

// gate is the one of a database.
type gate struct {
	sync.Mutex
	indexed map[string]bool // the collections that have the index of indexIDs
}

func newRelay(socket, data string) *relay {
	return &relay{socket: socket, data: data, gates: make(map[string]*gate)}
}

func (r *relay) gate(database string) *gate {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gates[database]
	if g == nil {
		g = &gate{indexed: make(map[string]bool)}
		r.gates[database] = g
	}
	return g
}

// serve accepts clients until ctx is done, then closes their connections. It returns when no command is under way.
func (r *relay) serve(ctx context.Context, listener net.Listener) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()

	var clients sync.WaitGroup
	defer clients.Wait()

	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				client.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() { r.handle(ctx, client) })
	}
}

// handle relays one client's messages until either side closes the connection. It does not report errors: the client
// sees its connection close, as it would if a real server failed.
func (r *relay) handle(ctx context.Context, client net.Conn) {
	defer client.Close()
	// Only the client's connection is closed at the end: the reply to a command under way is still awaited.
	defer context.AfterFunc(ctx, func() { client.Close() })()

	db, err := new(net.Dialer).DialContext(ctx, "unix", r.socket)
	if err != nil {
		return
	}
	defer db.Close()

	for {
		request, err := readMessage(client)
		if err != nil {
			return
		}
		reply, err := r.exchange(ctx, db, request)
		if err != nil {
			return
		}
		if request.noReply() {
			continue
		}
		// This is outside of the gate, so that a client that reads slowly does not keep the gate closed.
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// exchange passes a request on and returns the reply. FerretDB sends exactly one reply to any request: it ignores a
// client's wish for none (moreToCome) or for several (exhaustAllowed, which permits but does not oblige), and it
// answers an awaitable hello at once.
func (r *relay) exchange(ctx context.Context, db net.Conn, request message) (message, error) {
	// A driver measures the server's health and distance by hello. The command reads no data, and must not queue: a
	// driver that measures a long round trip gives up on short deadlines.
	var g *gate
	if !request.isHello() {
		g = r.gate(request.database())
		g.Lock()
		defer g.Unlock()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	request, err := judgeNow(request, time.Now()) // inside the gate, at the time of the execution
	if err != nil {
		return nil, err
	}
	if _, err := db.Write(request); err != nil {
		return nil, err
	}
	reply, err := readMessage(db)
	if err == nil {
		reply, err = tellSpace(reply)
	}
	if err != nil {
		return nil, err
	}
	switch request.command() {
	case "createIndexes": // the store has created its collections
		// Each handle of a store makes its indexes again. To open the database once more is dear.
		if !g.indexed[request.collection()] {
			err = indexIDs(ctx, r.data, request.database(), g.indexed)
		}
	case "drop", "dropDatabase", "renameCollection":
		clear(g.indexed)
	}
	return reply, err
}

// message is one whole message of the MongoDB wire protocol: a header of four little-endian int32 (total length,
// request id, id of the answered request, opcode) and a body that depends on the opcode.
type message []byte

const (
	headerLen = 16
	maxLen    = 48_000_000 // the limit that FerretDB and MongoDB announce in hello

	opQuery = 2004 // FerretDB accepts it only for the handshake of older drivers
	opMsg   = 2013 // flags (4 bytes), then sections: a kind (1 byte) and for kind 0 a BSON document

	document = headerLen + 4 + 1 // where a message's first document begins: after the flags and the kind

	flagChecksum   = 1 << 0
	flagMoreToCome = 1 << 1
)

func readMessage(from io.Reader) (message, error) {
	m := make(message, headerLen)
	if _, err := io.ReadFull(from, m); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(m)
	if n < headerLen || n > maxLen {
		return nil, fmt.Errorf("message of %d bytes", n)
	}
	m = append(m, make([]byte, n-headerLen)...)
	_, err := io.ReadFull(from, m[headerLen:])
	return m, err
}

func (m message) opcode() uint32 {
	return binary.LittleEndian.Uint32(m[12:])
}

// noReply reports whether the client waits for no reply, as with an unacknowledged write.
func (m message) noReply() bool {
	return m.opcode() == opMsg && len(m) >= headerLen+4 &&
		binary.LittleEndian.Uint32(m[headerLen:])&flagMoreToCome != 0
}

// isHello reports whether the request is a handshake or heartbeat.
func (m message) isHello() bool {
	if m.opcode() == opQuery {
		return true
	}
	switch m.command() {
	case "hello", "isMaster", "ismaster":
		return true
	}
	return false
}

// command returns the name of the request's command: the name of its document's first element. It is empty if the
// message's first section is not a document.
func (m message) command() string {
	const (
		kind = headerLen + 4    // after the flags
		name = kind + 1 + 4 + 1 // after the kind, the document's length and the element's type
	)
	if m.opcode() != opMsg || len(m) <= name || m[kind] != 0 {
		return ""
	}
	command, _, _ := bytes.Cut(m[name:], []byte{0})
	return string(command)
}

// collection returns the name of the command's collection: the value of its document's first element. It is empty if
// that is not a string.
func (m message) collection() string {
	if m.command() == "" {
		return ""
	}
	first, err := bson.Raw(m[document:]).IndexErr(0)
	if err != nil {
		return ""
	}
	name, _ := first.Value().StringValueOK()
	return name
}

// database returns the name of the command's database; empty if the message's first section is not a command.
func (m message) database() string {
	if m.command() == "" {
		return ""
	}
	name, _ := bson.Raw(m[document:]).Lookup("$db").StringValueOK()
	return name
}
