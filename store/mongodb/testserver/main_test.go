package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// start runs a server until the test ends or stop is called; stop waits until the server has stopped.
func start(t *testing.T, listen, data string) (uri string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	uris := make(chan string, 1)
	done := make(chan error, 1)
	go func() { done <- run(ctx, listen, data, func(uri string) { uris <- uri }) }()

	select {
	case uri = <-uris:
	case err := <-done:
		cancel()
		t.Fatalf("server did not start: %v", err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	t.Cleanup(stop)
	return uri, stop
}

// connect returns a client that gives up on a server that is gone within a test's patience.
func connect(t *testing.T, uri string, opts ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	opts = append([]*options.ClientOptions{
		options.Client().ApplyURI(uri).SetServerSelectionTimeout(5 * time.Minute),
	}, opts...)
	client, err := mongo.Connect(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client
}

// Each claimer has its own client, and so its own connections, as replicas do.
func TestClaimsAreAtomic(t *testing.T) {
	const (
		claimers = 8
		docs     = 200
	)
	ctx := t.Context()
	uri, _ := start(t, "127.0.0.1:0", "")

	var all []any
	for i := range docs {
		all = append(all, bson.D{{Key: "_id", Value: i}, {Key: "claims", Value: 0}})
	}
	if _, err := connect(t, uri).Database("test").Collection("docs").InsertMany(ctx, all); err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	claimed := make([][]int, claimers)
	for i := range claimers {
		coll := connect(t, uri).Database("test").Collection("docs")
		wg.Go(func() {
			for {
				var doc struct {
					ID int `bson:"_id"`
				}
				err := coll.FindOneAndUpdate(ctx,
					bson.D{{Key: "claims", Value: 0}},
					bson.D{{Key: "$inc", Value: bson.D{{Key: "claims", Value: 1}}}},
					options.FindOneAndUpdate().SetSort(bson.D{{Key: "_id", Value: 1}}),
				).Decode(&doc)
				if errors.Is(err, mongo.ErrNoDocuments) {
					return
				}
				if err != nil {
					t.Errorf("claimer %d: %v", i, err)
					return
				}
				claimed[i] = append(claimed[i], doc.ID)
			}
		})
	}
	wg.Wait()

	times := make(map[int]int)
	for i, ids := range claimed {
		t.Logf("claimer %d took %d", i, len(ids))
		for _, id := range ids {
			times[id]++
		}
	}
	for id := range docs {
		if times[id] != 1 {
			t.Errorf("document %d was claimed %d times", id, times[id])
		}
	}
}

// FerretDB answers an unacknowledged write too. If that answer reached the client, the client would take it for the
// answer to the next command on the connection.
func TestUnacknowledgedWrite(t *testing.T) {
	ctx := t.Context()
	uri, _ := start(t, "127.0.0.1:0", "")
	db := connect(t, uri, options.Client().SetMaxPoolSize(1)).Database("test")
	acknowledged := db.Collection("docs")
	unacknowledged := db.Collection("docs",
		options.Collection().SetWriteConcern(writeconcern.Unacknowledged()))

	for i := range 20 {
		if _, err := unacknowledged.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
		n, err := acknowledged.CountDocuments(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		if n != int64(i+1) {
			t.Fatalf("%d documents after %d inserts", n, i+1)
		}
	}
}

// A driver's monitor may repeatedly ask for a hello that is answered only when the server's state changes. It must be
// answered at once and only once: see exchange.
func TestAwaitableHello(t *testing.T) {
	uri, _ := start(t, "127.0.0.1:0", "")
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	body, err := bson.Marshal(bson.D{
		{Key: "hello", Value: 1},
		{Key: "topologyVersion", Value: bson.D{
			{Key: "processId", Value: bson.NewObjectID()},
			{Key: "counter", Value: int64(0)},
		}},
		{Key: "maxAwaitTimeMS", Value: 60_000},
		{Key: "$db", Value: "admin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const exhaustAllowed = 1 << 16
	request := binary.LittleEndian.AppendUint32(nil, uint32(headerLen+4+1+len(body)))
	request = binary.LittleEndian.AppendUint32(request, 7) // request id
	request = binary.LittleEndian.AppendUint32(request, 0)
	request = binary.LittleEndian.AppendUint32(request, opMsg)
	request = binary.LittleEndian.AppendUint32(request, exhaustAllowed)
	request = append(request, 0) // section kind
	request = append(request, body...)
	if !message(request).isHello() {
		t.Error("a hello is not recognised")
	}
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}

	conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
	reply, err := readMessage(conn)
	if err != nil {
		t.Fatal(err)
	}
	if reply.noReply() {
		t.Error("the reply announces more replies")
	}
	doc := bson.Raw(reply[headerLen+5:])
	if ok, _ := doc.Lookup("isWritablePrimary").BooleanOK(); !ok {
		t.Errorf("hello's answer: %v", doc)
	}
	for _, key := range []string{"hosts", "setName", "me", "primary", "topologyVersion"} {
		if v, err := doc.LookupErr(key); err == nil {
			t.Errorf("hello's answer has %s: %v", key, v)
		}
	}

	conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %d bytes, %v", n, err)
	}
}

// Tests of an outage stop the server and start it again at the same address and directory.
func TestStopAndStartAgain(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	uri, stop := start(t, "127.0.0.1:0", dir)
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	coll := connect(t, uri).Database("test").Collection("docs")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "kept"}}); err != nil {
		t.Fatal(err)
	}

	stop()
	down, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := coll.FindOne(down, bson.D{}).Err(); err == nil {
		t.Fatal("answered while stopped")
	}

	again, _ := start(t, u.Host, dir)
	if again != uri {
		t.Fatalf("URI is %s, was %s", again, uri)
	}
	var doc bson.M
	if err := coll.FindOne(ctx, bson.D{}).Decode(&doc); err != nil || doc["_id"] != "kept" {
		t.Fatalf("found %v, %v", doc, err)
	}
}
