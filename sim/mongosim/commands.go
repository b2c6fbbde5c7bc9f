package mongosim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// command is a command under way. Its methods run with the server locked; between two documents, they may unlock it.
type command struct {
	*Server
	bson.D
	now   time.Time // the value of $$NOW
	until time.Time // the end of maxTimeMS; zero for none
	yield func()
}

// Accessors of the command's fields; the zero value if a field is absent.
func (c *command) int(name string) int {
	v, there := field(c.D, name)
	if !there {
		return 0
	}
	return int(number(v))
}

func (c *command) doc(name string) bson.D  { return docOf(c.D, name) }
func (c *command) list(name string) bson.A { return listOf(c.D, name) }

func docOf(d bson.D, name string) bson.D {
	v, _ := field(d, name)
	inner, _ := v.(bson.D)
	return inner
}

func listOf(d bson.D, name string) bson.A {
	v, _ := field(d, name)
	list, _ := v.(bson.A)
	return list
}

// between lets other commands come in, and ends the command once its time is over.
func (c *command) between() error {
	if c.yield != nil {
		c.lock.Unlock()
		c.yield()
		c.lock.Lock()
	}
	if !c.until.IsZero() && !time.Now().Before(c.until) {
		return &failure{code: CodeTimeLimit, text: "operation exceeded time limit"}
	}
	return nil
}

func (c *command) run(name string, conn int32) (bson.D, error) {
	target, _ := c.D[0].Value.(string)
	switch name {
	case "hello", "isMaster", "ismaster":
		return c.hello(conn), nil
	case "ping", "endSessions", "killCursors":
		return nil, nil
	case "createIndexes":
		c.createIndexes(target)
		return nil, nil
	case "enableSharding":
		return nil, nil
	case "shardCollection":
		return nil, c.shardCollection(target)
	case "drop":
		delete(c.collections, target)
		return nil, nil
	case "insert":
		return c.insert(c.collection(target))
	case "update":
		return c.update(target)
	case "delete":
		return c.delete(target)
	case "findAndModify":
		return c.findAndModify(target)
	case "find":
		if err := c.route(target, c.doc("filter"), false); err != nil {
			return nil, err
		}
		found := c.find(target, c.doc("filter"), c.doc("sort"), c.int("limit"))
		for i := range found {
			found[i] = projected(found[i], c.doc("projection"))
		}
		return c.cursor(target, found), nil
	case "getMore":
		return c.getMore()
	case "count":
		return bson.D{{Key: "n", Value: int32(len(c.collection(target).documents))}}, nil
	case "aggregate":
		return c.aggregate(target)
	default:
		return nil, &failure{code: codeNotFound, text: "no such command: " + name}
	}
}

func (c *command) hello(conn int32) bson.D {
	pose := bson.D{
		{Key: "setName", Value: "sim"}, {Key: "setVersion", Value: int32(1)}, {Key: "secondary", Value: false},
		{Key: "hosts", Value: bson.A{Host}}, {Key: "primary", Value: Host}, {Key: "me", Value: Host},
	}
	if c.sharded != nil {
		pose = bson.D{{Key: "msg", Value: "isdbgrid"}}
	}
	return append(pose, bson.D{
		{Key: "helloOk", Value: true}, {Key: "isWritablePrimary", Value: true}, {Key: "ismaster", Value: true},
		{Key: "maxBsonObjectSize", Value: int32(16 << 20)}, {Key: "maxMessageSizeBytes", Value: int32(48_000_000)},
		{Key: "maxWriteBatchSize", Value: int32(100_000)}, {Key: "localTime", Value: bson.NewDateTimeFromTime(c.now)},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)}, {Key: "connectionId", Value: conn},
		{Key: "minWireVersion", Value: int32(0)}, {Key: "maxWireVersion", Value: int32(21)},
		{Key: "readOnly", Value: false},
	}...)
}

func (s *Server) collection(name string) *collection {
	if s.collections[name] == nil {
		s.collections[name] = &collection{documents: map[string]*stored{}}
	}
	return s.collections[name]
}

func idOf(d bson.D) string {
	id, _ := field(d, "_id")
	return id.(string)
}

func (col *collection) remove(id string) {
	d := col.documents[id]
	d.document = nil
	delete(col.documents, id)
	col.order = slices.DeleteFunc(col.order, func(one *stored) bool { return one == d })
}

// find returns the documents that match.
func (c *command) find(target string, filter, sort bson.D, limit int) (found []bson.D) {
	for i, part := range c.shardsOf(target, filter) {
		if i > 0 && c.yield != nil {
			c.lock.Unlock()
			c.yield()
			c.lock.Lock()
		}
		for _, d := range part {
			if d.document != nil && matches(d.document, filter, c.now) {
				found = append(found, d.document)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b bson.D) int { return bySort(a, b, sort) })
	if limit != 0 && len(found) > max(limit, -limit) {
		found = found[:max(limit, -limit)]
	}
	return found
}

// cursor returns the first batch of documents, and keeps the others.
func (c *command) cursor(target string, all []bson.D) bson.D {
	size := len(all)
	batch, given := field(c.D, "batchSize")
	if !given {
		batch, given = field(c.D, "cursor.batchSize")
	}
	if given {
		size = min(size, int(number(batch)))
	} else {
		size = min(size, 101)
	}
	single, _ := field(c.D, "singleBatch")
	var id int64
	if size < len(all) && single != true {
		c.nextCursor++
		id = c.nextCursor
		c.cursors[id] = all[size:]
	}
	return bson.D{{Key: "cursor", Value: bson.D{
		{Key: "firstBatch", Value: listed(all[:size])}, {Key: "id", Value: id}, {Key: "ns", Value: "carillon." + target},
	}}}
}

func listed(all []bson.D) bson.A {
	list := make(bson.A, len(all))
	for i, d := range all {
		list[i] = d
	}
	return list
}

func (c *command) getMore() (bson.D, error) {
	id, _ := c.D[0].Value.(int64)
	left, ok := c.cursors[id]
	if !ok {
		return nil, &failure{code: 43, text: "cursor not found"}
	}
	size := len(left)
	if n := c.int("batchSize"); n > 0 {
		size = min(size, n)
	}
	target, _ := field(c.D, "collection")
	delete(c.cursors, id)
	if size < len(left) {
		c.cursors[id] = left[size:]
	} else {
		id = 0
	}
	return bson.D{{Key: "cursor", Value: bson.D{
		{Key: "nextBatch", Value: listed(left[:size])}, {Key: "id", Value: id},
		{Key: "ns", Value: fmt.Sprintf("carillon.%v", target)},
	}}}, nil
}

// aggregate knows the pipelines that count documents, and those that group by a field.
func (c *command) aggregate(target string) (bson.D, error) {
	var filter bson.D
	if pipeline := c.list("pipeline"); len(pipeline) > 0 {
		filter = docOf(pipeline[0].(bson.D), "$match")
	}
	if err := c.route(target, filter, false); err != nil {
		return nil, err
	}
	all := c.find(target, filter, nil, 0)
	for _, stage := range c.list("pipeline") {
		e := stage.(bson.D)[0]
		switch e.Key {
		case "$match":
			all = slices.DeleteFunc(all, func(d bson.D) bool { return !matches(d, e.Value.(bson.D), c.now) })
		case "$limit":
			all = all[:min(len(all), int(number(e.Value)))]
		case "$group":
			all = grouped(all, e.Value.(bson.D))
		default:
			return nil, &failure{code: codeNotFound, text: "no such stage: " + e.Key}
		}
	}
	return c.cursor(target, all), nil
}

func grouped(all []bson.D, by bson.D) (groups []bson.D) {
	id, _ := field(by, "_id")
	counts := len(by) > 1
	path, isField := id.(string)
	path, isPath := strings.CutPrefix(path, "$")
	for _, d := range all {
		key := id
		if isField && isPath {
			key, _ = field(d, path)
		}
		i := slices.IndexFunc(groups, func(g bson.D) bool { return compare(g[0].Value, key) == 0 })
		if i < 0 {
			i = len(groups)
			groups = append(groups, bson.D{{Key: "_id", Value: key}})
			if counts {
				groups[i] = append(groups[i], bson.E{Key: by[1].Key, Value: int32(0)})
			}
		}
		if counts {
			groups[i][1].Value = groups[i][1].Value.(int32) + 1
		}
	}
	return groups
}

// results gathers the results of the statements of a write command.
type results struct {
	n, modified int
	errors      bson.A
}

func (r *results) answer(modified bool) bson.D {
	d := bson.D{{Key: "n", Value: int32(r.n)}}
	if modified {
		d = append(d, bson.E{Key: "nModified", Value: int32(r.modified)})
	}
	if len(r.errors) > 0 {
		d = append(d, bson.E{Key: "writeErrors", Value: r.errors})
	}
	return d
}

// each runs the statements of a write. The driver sends ordered and unordered ones; an error of one ends an ordered
// command.
func (c *command) each(name string, do func(statement bson.D, r *results) error, modified bool) (bson.D, error) {
	ordered, _ := field(c.D, "ordered")
	var r results
	for i, statement := range c.list(name) {
		if i > 0 {
			if err := c.between(); err != nil {
				return nil, err
			}
		}
		err := do(statement.(bson.D), &r)
		if err == nil {
			continue
		}
		var failed *failure
		if !errors.As(err, &failed) || failed.code == CodeTimeLimit {
			return nil, err
		}
		r.errors = append(r.errors, bson.D{
			{Key: "index", Value: int32(i)}, {Key: "code", Value: int32(failed.code)},
			{Key: "errmsg", Value: failed.text},
		})
		if ordered != false {
			break
		}
	}
	return r.answer(modified), nil
}

func (c *command) insert(col *collection) (bson.D, error) {
	return c.each("documents", func(d bson.D, r *results) error {
		id := idOf(d)
		if col.documents[id] != nil {
			return &failure{code: codeDuplicate, text: "E11000 duplicate key error: _id " + id}
		}
		one := &stored{d}
		col.documents[id] = one
		col.order = append(col.order, one)
		r.n++
		return nil
	}, false)
}

func (c *command) update(target string) (bson.D, error) {
	return c.each("updates", func(statement bson.D, r *results) error {
		filter, update, multi := docOf(statement, "q"), docOf(statement, "u"), false
		if v, _ := field(statement, "multi"); v == true {
			multi = true
		}
		if err := c.route(target, filter, !multi); err != nil {
			return err
		}
		return c.visit(c.collection(target), filter, multi, func(d *stored) {
			d.document = updated(d.document, update)
			r.n++
			r.modified++
		})
	}, true)
}

func (c *command) delete(target string) (bson.D, error) {
	col := c.collection(target)
	return c.each("deletes", func(statement bson.D, r *results) error {
		multi := compareInt(statement, "limit") == 0
		if err := c.route(target, docOf(statement, "q"), !multi); err != nil {
			return err
		}
		return c.visit(col, docOf(statement, "q"), multi, func(d *stored) {
			col.remove(idOf(d.document))
			r.n++
		})
	}, false)
}

func compareInt(d bson.D, name string) int {
	v, there := field(d, name)
	if !there {
		return 0
	}
	return int(number(v))
}

// visit calls do for the documents that match, or for the first. Each document is judged and changed in one step.
func (c *command) visit(col *collection, filter bson.D, multi bool, do func(*stored)) error {
	matched := 0
	for _, d := range slices.Clone(col.order) {
		if d.document == nil || !matches(d.document, filter, c.now) {
			continue
		}
		if matched > 0 {
			if err := c.between(); err != nil {
				return err
			}
			if d.document == nil || !matches(d.document, filter, c.now) {
				continue
			}
		}
		matched++
		if do(d); !multi {
			return nil
		}
	}
	return nil
}

func (c *command) findAndModify(target string) (bson.D, error) {
	if err := c.route(target, c.doc("query"), true); err != nil {
		return nil, err
	}
	found := c.find(target, c.doc("query"), c.doc("sort"), 1)
	if len(found) == 0 {
		return bson.D{
			{Key: "lastErrorObject", Value: bson.D{{Key: "n", Value: int32(0)}, {Key: "updatedExisting", Value: false}}},
			{Key: "value", Value: nil},
		}, nil
	}
	d := c.collection(target).documents[idOf(found[0])]
	before := d.document
	d.document = updated(d.document, c.doc("update"))
	value := before
	if v, _ := field(c.D, "new"); v == true {
		value = d.document
	}
	return bson.D{
		{Key: "lastErrorObject", Value: bson.D{{Key: "n", Value: int32(1)}, {Key: "updatedExisting", Value: true}}},
		{Key: "value", Value: projected(value, c.doc("fields"))},
	}, nil
}
