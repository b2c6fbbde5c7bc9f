package mongosim

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// RouterURL opens the database of a simulated router.
const RouterURL = "mongodb://" + Host + "/carillon"

// Error codes of MongoDB for sharded collections.
const (
	codeInvalidOptions   = 72
	codeShardKeyNotFound = 61
	codeAlreadySharded   = 23
)

// shards is the number of shards behind a router.
const shards = 3

// NewRouter makes a server that poses as the router of a sharded cluster with three shards. Collections are sharded by
// the command shardCollection, by a hash of _id. The router is as strict as those before MongoDB 7.0: it refuses to
// change one document of a sharded collection if the filter does not name its _id. A read of several shards reads one
// after the other; the [Gate] may let other commands come in between.
func NewRouter(gate Gate) *Server {
	s := New(gate)
	s.sharded = map[string]bool{}
	return s
}

// Route is how a command was sent to the shards.
type Route struct {
	// Command is its name, such as "update"; Collection the sharded collection.
	Command, Collection string
	// Fields are those that the filter names at the top, in alphabetical order, separated by spaces.
	Fields string
	// Everywhere tells that it went to all shards; otherwise to those of the documents that its filter names by _id.
	Everywhere bool
}

// Routes returns the number of commands of each kind that read or changed sharded collections by a filter.
func (s *Server) Routes() map[Route]int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return maps.Clone(s.routes)
}

// hashedID is the only key that collections are sharded by here.
func hashedID(key bson.D) bool {
	return len(key) == 1 && key[0].Key == "_id" && key[0].Value == "hashed"
}

func (c *command) createIndexes(target string) {
	for _, index := range c.list("indexes") {
		if hashedID(docOf(index.(bson.D), "key")) {
			c.collection(target).hashed = true
		}
	}
}

func (c *command) shardCollection(namespace string) error {
	_, target, _ := strings.Cut(namespace, ".")
	switch col := c.collection(target); {
	case c.sharded == nil:
		return &failure{code: codeNotFound, text: "no such command: shardCollection"}
	case !hashedID(c.doc("key")):
		return &failure{code: codeAlreadySharded, text: "this router shards by a hash of _id only"}
	case len(col.order) > 0 && !col.hashed:
		return &failure{code: codeInvalidOptions, text: "please create an index that starts with the proposed shard key"}
	}
	c.sharded[target] = true
	return nil
}

// route notes where a command on a collection goes. It refuses a change of one document whose shard is not known.
func (c *command) route(target string, filter bson.D, one bool) error {
	if !c.sharded[target] {
		return nil
	}
	fields := map[string]bool{}
	targeted, exact := fieldsOf(filter, fields)
	if one && !exact {
		return &failure{code: codeShardKeyNotFound, text: "query for sharded " + c.D[0].Key +
			" must contain the shard key or an exact match on _id: " + fmt.Sprint(filter)}
	}
	if c.routes == nil {
		c.routes = map[Route]int{}
	}
	c.routes[Route{
		Command: c.D[0].Key, Collection: target, Everywhere: !targeted,
		Fields: strings.Join(slices.Sorted(maps.Keys(fields)), " "),
	}]++
	return nil
}

// fieldsOf gathers the fields that a filter names. It reports whether the filter names the ids of all documents that
// can match, and whether it names a single one.
func fieldsOf(filter bson.D, fields map[string]bool) (targeted, exact bool) {
	for _, e := range filter {
		if e.Key == "$and" {
			for _, part := range e.Value.(bson.A) {
				t, x := fieldsOf(part.(bson.D), fields)
				targeted, exact = targeted || t, exact || x
			}
			continue
		}
		name, _, _ := strings.Cut(e.Key, ".")
		fields[name] = true
		if e.Key != "_id" {
			continue
		}
		condition, isDoc := e.Value.(bson.D)
		_, in := field(condition, "$in")
		_, eq := field(condition, "$eq")
		exact = exact || !isDoc || eq
		targeted = targeted || exact || in
	}
	return targeted, exact
}

// shardsOf returns the documents by shard; all in one if the collection is not sharded, or if the filter names one
// document.
func (c *command) shardsOf(target string, filter bson.D) [][]*stored {
	all := slices.Clone(c.collection(target).order)
	if _, exact := fieldsOf(filter, map[string]bool{}); exact || !c.sharded[target] {
		return [][]*stored{all}
	}
	parts := make([][]*stored, shards)
	for _, d := range all {
		h := fnv.New32a()
		_, _ = h.Write([]byte(idOf(d.document)))
		parts[h.Sum32()%shards] = append(parts[h.Sum32()%shards], d)
	}
	return parts
}
