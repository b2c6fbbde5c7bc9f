// Package mongosim is a MongoDB server in this process, for simulations: it speaks MongoDB's wire protocol on
// connections within the process, and knows those commands that Carillon's store for MongoDB sends. So the real store,
// with the real driver, runs in a bubble of testing/synctest.
//
// A write of one document is atomic, as on a real server. A command that changes several documents changes them one by
// one; others may come in between, if the [Gate] lets them. Like a replica set, the server makes a write that the
// driver repeats only once.
package mongosim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Host is the address of the server, for the store's URL.
const Host = "server.sim:27017"

// URL opens the database of a simulated server that poses as the primary of a replica set, to which the driver repeats
// writes whose answers were lost.
const URL = "mongodb://" + Host + "/carillon?replicaSet=sim"

// Error codes of MongoDB.
const (
	CodeTimeLimit   = 50
	CodeOutOfDisk   = 14031
	CodeNotPrimary  = 10107
	codeDuplicate   = 11000
	codeNotFound    = 59
	firstConnection = 1
)

// Fate is the outcome of one command. Nil funcs do nothing.
type Fate struct {
	// Request is called before the command takes effect, and Answer before its answer is sent. They return when the
	// request or the answer arrives, or false if it is lost; then the connection is cut.
	Request, Answer func() (arrives bool)
	// Code is the error with which the server refuses the command; 0 for none.
	Code int
	// Yield is called between any two documents that a command changes; nil lets no other command come in between.
	Yield func()
}

// Gate decides the fate of connections and commands. It is called concurrently. Client is the one that the
// connection was made for.
type Gate interface {
	// Dial returns an error if a client can't connect now.
	Dial(ctx context.Context, client string) error
	// Command returns the fate of a command. Name is the command's, such as "update"; collection may be empty.
	Command(client, name, collection string) Fate
}

// Server is a MongoDB server. It is safe for concurrent use.
type Server struct {
	gate Gate

	lock        sync.Mutex
	collections map[string]*collection
	cursors     map[int64][]bson.D
	nextCursor  int64
	nextConn    int32
	repeated    map[string]*made    // by session and number of the transaction
	conns       map[int32]connected // by number
	sharded     map[string]bool     // the sharded collections; nil if the server is no router
	routes      map[Route]int
}

// connected is a connection, and the client that made it.
type connected struct {
	net.Conn
	client string
}

// made is a write that may be repeated by the driver, with its answer.
type made struct {
	done   chan struct{}
	answer bson.D
}

// collection has documents in the order of their insertion.
type collection struct {
	documents map[string]*stored
	order     []*stored
	hashed    bool // has an index by a hash of _id
}

type stored struct {
	document bson.D // nil once deleted
}

// New makes a server without documents.
func New(gate Gate) *Server {
	return &Server{
		gate: gate, collections: map[string]*collection{}, cursors: map[int64][]bson.D{},
		repeated: map[string]*made{}, conns: map[int32]connected{}, nextConn: firstConnection,
	}
}

// Dialer returns the dialer of a client, for [mongodb.OpenThrough].
func (s *Server) Dialer(client string) *Dialer { return &Dialer{s, client} }

// Dialer connects one client to a server.
type Dialer struct {
	server *Server
	client string
}

// DialContext connects to the server, whatever the address is.
func (d *Dialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := d.server.gate.Dial(ctx, d.client); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	d.server.lock.Lock()
	id := d.server.nextConn
	d.server.nextConn++
	d.server.conns[id] = connected{ours, d.client}
	d.server.lock.Unlock()
	go d.server.serve(ours, d.client, id)
	return theirs, nil
}

// Cut closes the connections of a client. Commands under way still take effect.
func (s *Server) Cut(client string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.conns)) {
		if one := s.conns[id]; one.client == client {
			_ = one.Close()
		}
	}
}

// Connections returns the number of connections.
func (s *Server) Connections() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.conns)
}

// serve answers the commands of a connection, one after the other.
func (s *Server) serve(conn net.Conn, client string, id int32) {
	defer func() {
		_ = conn.Close()
		s.lock.Lock()
		delete(s.conns, id)
		s.lock.Unlock()
	}()
	for {
		m, err := read(conn)
		if err != nil {
			return
		}
		of, _ := m.command[0].Value.(string)
		fate := s.gate.Command(client, m.name(), of)
		if fate.Request != nil && !fate.Request() {
			return
		}
		answer := s.execute(&m, id, fate)
		if fate.Answer != nil && !fate.Answer() {
			return
		}
		if err := write(conn, &m, answer); err != nil {
			return
		}
	}
}

// failure is an error that a command answers.
type failure struct {
	code   int
	text   string
	labels []string
}

func (f *failure) Error() string { return f.text }

// execute runs a command and returns its answer.
func (s *Server) execute(m *message, conn int32, fate Fate) bson.D {
	c := command{Server: s, D: m.command, now: time.Now().UTC(), yield: fate.Yield}
	if limit := c.int("maxTimeMS"); limit > 0 {
		c.until = c.now.Add(time.Duration(limit) * time.Millisecond)
	}
	if fate.Code != 0 && !slices.Contains([]string{"hello", "isMaster", "ismaster", "ping", "endSessions"}, m.name()) {
		return refusal(&failure{code: fate.Code, text: "the simulated server refuses the command"})
	}
	answer, err := s.once(&c, func() (bson.D, error) {
		s.lock.Lock()
		defer s.lock.Unlock()
		return c.run(m.name(), conn)
	})
	if failed := (*failure)(nil); errors.As(err, &failed) {
		return refusal(failed)
	}
	return append(answer, bson.E{Key: "ok", Value: 1.0})
}

func refusal(f *failure) bson.D {
	d := bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: f.text}, {Key: "code", Value: int32(f.code)}}
	if len(f.labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: f.labels})
	}
	return d
}

// once makes a write that the driver may repeat, and answers a repetition with the same answer.
func (s *Server) once(c *command, run func() (bson.D, error)) (bson.D, error) {
	number, repeatable := field(c.D, "txnNumber")
	session, _ := field(c.D, "lsid")
	if !repeatable {
		return run()
	}
	id, _ := session.(bson.D)[0].Value.(bson.Binary)
	key := fmt.Sprintf("%x/%v", id.Data, number)
	s.lock.Lock()
	before := s.repeated[key]
	if before == nil {
		s.repeated[key] = &made{done: make(chan struct{})}
	}
	now := s.repeated[key]
	s.lock.Unlock()
	if before != nil {
		<-before.done
		if before.answer != nil {
			return before.answer, nil
		}
		return run()
	}
	answer, err := run()
	if err == nil {
		now.answer = answer
	}
	close(now.done)
	return answer, err
}
