package job

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Patch applies a JSON merge patch (RFC 7396) to the job as it was submitted, and returns the result as a draft that is
// not yet checked. Members that the patch does not name keep their bytes. The error is a [*Malformed] or an [*Invalid].
func (j *Job) Patch(patch []byte) (Draft, error) {
	members, err := decode[map[string]jsontext.Value](patch)
	if err != nil {
		return Draft{}, err
	}
	if members == nil {
		return Draft{}, InvalidField("", "must be an object, not null")
	}
	d := j.Draft()
	d.Callback = nil
	object := mustEncode(d)
	target := j.Target()
	object = slices.Concat(object[:len(object)-1], []byte(`,"callback":`), target.EncodeCallback(), []byte("}"))
	merged, err := merge(object, patch)
	if err != nil {
		return Draft{}, &Malformed{Reason: err.Error()}
	}
	return Decode(merged)
}

// merge applies a patch to a value. Members keep their order; new ones come last. Each of the two is read once, however
// deeply it is nested.
func merge(value, patch jsontext.Value) (jsontext.Value, error) {
	target, err := readTree(value)
	if err != nil {
		return nil, err
	}
	change, err := readTree(patch)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	target.merged(change, &out)
	return out.Bytes(), nil
}

// tree is a JSON value: its bytes and, if it is an object, its members and their names in order.
type tree struct {
	raw     []byte
	names   []string
	members map[string]*tree // nil if it is no object
}

func readTree(value []byte) (*tree, error) {
	return readNode(jsontext.NewDecoder(bytes.NewBuffer(value)), value)
}

// readNode reads the decoder's next value. The trees share the bytes that the decoder reads.
func readNode(d *jsontext.Decoder, all []byte) (*tree, error) {
	if d.PeekKind() != jsontext.KindBeginObject {
		value, err := d.ReadValue()
		end := d.InputOffset()
		return &tree{raw: all[end-int64(len(value)) : end]}, err
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	start := d.InputOffset() - 1
	t := &tree{members: make(map[string]*tree)}
	for d.PeekKind() != jsontext.KindEndObject {
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		name := token.String()
		t.names = append(t.names, name)
		if t.members[name], err = readNode(d, all); err != nil {
			return nil, err
		}
	}
	_, err := d.ReadToken()
	t.raw = all[start:d.InputOffset()]
	return t, err
}

// merged writes the value that results from a patch. The value before may be nil.
func (t *tree) merged(patch *tree, out *bytes.Buffer) {
	if patch.members == nil {
		out.Write(patch.raw)
		return
	}
	first := true
	member := func(name string) {
		if !first {
			out.WriteByte(',')
		}
		first = false
		out.Write(mustEncode(name))
		out.WriteByte(':')
	}
	out.WriteByte('{')
	if t == nil {
		t = &tree{}
	}
	for _, name := range t.names {
		switch change, named := patch.members[name]; {
		case !named:
			member(name)
			out.Write(t.members[name].raw)
		case !change.null():
			member(name)
			t.members[name].merged(change, out)
		}
	}
	for _, name := range patch.names {
		if _, known := t.members[name]; !known && !patch.members[name].null() {
			member(name)
			(*tree)(nil).merged(patch.members[name], out)
		}
	}
	out.WriteByte('}')
}

func (t *tree) null() bool { return jsontext.Value(t.raw).Kind() == jsontext.KindNull }
