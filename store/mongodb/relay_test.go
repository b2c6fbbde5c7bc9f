//go:build services

package mongodb_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/store/mongodb"
)

// command is a command that a store sends: its name, the collection, its document, the statements of an update or a
// deletion, or the documents of an insertion, and the bytes of the whole message.
type command struct {
	name, collection string
	body             bson.Raw
	list             []bson.Raw
	size             int
}

// verdict decides the fate of a command.
type verdict int

const (
	pass         verdict = iota
	cutBefore            // the connection is lost before the server gets it
	cutAfter             // the connection is lost before the store gets the answer
	answerBefore         // the relay answers instead of the server
	answerAfter          // the server executes it, but the relay answers
	hold                 // the server gets it when the test delivers it, and the answer is discarded
)

// relay stands between one store and the server. It shows each command to watch before it passes the command on. So it
// can stop the store at any point, do something else meanwhile, and cut the connection.
type relay struct {
	url    string // of the database through the relay
	mu     sync.Mutex
	watch  func(command) verdict
	answer bson.D

	held    sync.WaitGroup // held commands that were not executed yet
	release chan struct{}
	deliver func() // sends the held command, and returns when it was executed
}

// relayed opens a store that reaches its database through a relay.
func (db database) relayed(t *testing.T) (*mongodb.Store, *relay) {
	t.Helper()
	r := db.relay(t)
	s, err := mongodb.Open(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, r
}

func (db database) relay(t *testing.T) *relay {
	t.Helper()
	hosts := strings.Join(options.Client().ApplyURI(db.url).Hosts, ",")
	primary := db.primary(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(r.release) })
	r.deliver = func() {
		release()
		r.mu.Lock() // the present command may be held
		defer r.mu.Unlock()
		r.held.Wait()
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { r.serve(client, primary) })
		}
	})

	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		release()
		group.Wait()
	})

	// The driver's retries are turned off, so that a test's failure reaches the store.
	separator := "?"
	if strings.Contains(db.url, "?") {
		separator = "&"
	}
	r.url = strings.Replace(db.url, hosts, listener.Addr().String(), 1) + separator +
		"directConnection=true&retryWrites=false&retryReads=false"
	return r
}

// primary returns the address of the server that a store writes to.
func (db database) primary(t *testing.T) string {
	t.Helper()
	var hello struct {
		Primary string
	}
	if err := db.RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	return cmp.Or(hello.Primary, options.Client().ApplyURI(db.url).Hosts[0])
}

// on sets the function that runs at the n-th command, from 1, with a name on a collection. It runs once.
func (r *relay) on(name, collection string, n int, do func() verdict) {
	r.set(func(c command) verdict {
		if c.name != name || c.collection != collection {
			return pass
		}
		if n--; n != 0 {
			return pass
		}
		return do()
	})
}

func (r *relay) set(watch func(command) verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = watch
}

func (r *relay) serve(client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	for {
		request, err := readMessage(client)
		if err != nil {
			return
		}
		decided, answer := r.decide(request)
		if decided == cutBefore {
			return
		}
		if decided == hold {
			<-r.release
			if _, err := upstream.Write(request); err == nil {
				_, _ = readMessage(upstream)
			}
			r.held.Done()
			return
		}
		reply := answer
		if decided != answerBefore {
			if _, err := upstream.Write(request); err != nil {
				return
			}
			if reply, err = readMessage(upstream); err != nil || decided == cutAfter {
				return
			}
		}
		if decided == answerAfter {
			reply = answer
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// decide asks the test for the verdict about a request, and builds the answer if the test has set one.
func (r *relay) decide(request []byte) (v verdict, answer []byte) {
	c, ok := commandOf(request)
	if !ok {
		return pass, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch != nil {
		v = r.watch(c)
	}
	if v == hold {
		r.held.Add(1)
	}
	if v != answerBefore && v != answerAfter {
		return v, nil
	}
	document, err := bson.Marshal(r.answer)
	if err != nil {
		panic(err)
	}
	answer = binary.LittleEndian.AppendUint32(nil, uint32(16+4+1+len(document)))
	answer = append(answer, request[4:8]...) // the message's own id, which may be any
	answer = append(answer, request[4:8]...) // the id of the request
	answer = append(answer, request[12:16]...)
	answer = append(answer, make([]byte, 5)...) // no flags, and a section of kind 0
	return v, append(answer, document...)
}

// readMessage reads one message of the wire protocol, which begins with its length.
func readMessage(from io.Reader) ([]byte, error) {
	header := make([]byte, 16)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	message := make([]byte, binary.LittleEndian.Uint32(header))
	copy(message, header)
	_, err := io.ReadFull(from, message[len(header):])
	return message, err
}

// commandOf decodes the command of an OP_MSG. After the header and 4 bytes of flags, a section of kind 0 is the
// command's document, and a section of kind 1, which begins with its length, is a list of documents.
func commandOf(message []byte) (c command, ok bool) {
	const opMsg = 2013
	c.size = len(message)
	if binary.LittleEndian.Uint32(message[12:]) != opMsg {
		return c, false
	}
	for rest := message[20:]; len(rest) > 5; {
		kind, length := rest[0], int(binary.LittleEndian.Uint32(rest[1:]))
		section := rest[1 : 1+length]
		rest = rest[1+length:]
		if kind == 1 {
			name := bytes.IndexByte(section[4:], 0)
			for list := section[4+name+1:]; len(list) > 0; {
				n := binary.LittleEndian.Uint32(list)
				c.list, list = append(c.list, bson.Raw(list[:n])), list[n:]
			}
			continue
		}
		c.body = bson.Raw(section)
		first, err := c.body.IndexErr(0)
		if err != nil {
			return c, false
		}
		c.name = first.Key()
		c.collection, _ = first.Value().StringValueOK()
		ok = true
	}
	return c, ok
}
