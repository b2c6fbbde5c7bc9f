package mongosim

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// rank orders values of different types as MongoDB does, as far as the types occur.
func rank(v any) int {
	switch v.(type) {
	case nil:
		return 1
	case int32, int64, float64:
		return 2
	case string:
		return 3
	case bson.D:
		return 4
	case bson.A:
		return 5
	case bson.Binary:
		return 6
	case bool:
		return 8
	case bson.DateTime:
		return 9
	default:
		panic(fmt.Sprintf("mongosim: no order is known for a %T", v))
	}
}

func number(v any) float64 {
	switch n := v.(type) {
	case int32:
		return float64(n)
	case int64:
		return float64(n)
	case float64:
		return n
	default:
		panic(fmt.Sprintf("mongosim: %T is no number", v))
	}
}

// compare orders two values as an index does.
func compare(a, b any) int {
	if d := cmp.Compare(rank(a), rank(b)); d != 0 {
		return d
	}
	switch a := a.(type) {
	case nil:
		return 0
	case string:
		return strings.Compare(a, b.(string))
	case bool:
		if a == b.(bool) {
			return 0
		}
		if a {
			return 1
		}
		return -1
	case bson.DateTime:
		return cmp.Compare(a, b.(bson.DateTime))
	case bson.Binary:
		return bytes.Compare(a.Data, b.(bson.Binary).Data)
	case bson.A:
		return slices.CompareFunc(a, b.(bson.A), compare)
	case bson.D:
		return slices.CompareFunc(a, b.(bson.D), func(x, y bson.E) int {
			return cmp.Or(strings.Compare(x.Key, y.Key), compare(x.Value, y.Value))
		})
	default:
		return cmp.Compare(number(a), number(b))
	}
}

// field returns a field of a document by its path, and whether there is one.
func field(d bson.D, path string) (any, bool) {
	name, rest, nested := strings.Cut(path, ".")
	for _, e := range d {
		if e.Key != name {
			continue
		}
		if !nested {
			return e.Value, true
		}
		inner, ok := e.Value.(bson.D)
		if !ok {
			return nil, false
		}
		return field(inner, rest)
	}
	return nil, false
}

// with returns a document with a field set. It shares nothing that it changes.
func with(d bson.D, path string, v any) bson.D {
	name, rest, nested := strings.Cut(path, ".")
	d = slices.Clone(d)
	i := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == name })
	if i < 0 {
		d = append(d, bson.E{Key: name})
		i = len(d) - 1
	}
	if nested {
		inner, _ := d[i].Value.(bson.D)
		v = with(inner, rest, v)
	}
	d[i].Value = v
	return d
}

// without returns a document without a field.
func without(d bson.D, path string) bson.D {
	name, rest, nested := strings.Cut(path, ".")
	i := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == name })
	if i < 0 {
		return d
	}
	d = slices.Clone(d)
	if !nested {
		return slices.Delete(d, i, i+1)
	}
	if inner, ok := d[i].Value.(bson.D); ok {
		d[i].Value = without(inner, rest)
	}
	return d
}

// matches reports whether a document matches a filter, for a command that began at now.
func matches(d, filter bson.D, now time.Time) bool {
	for _, e := range filter {
		if !matchesOne(d, e, now) {
			return false
		}
	}
	return true
}

func matchesOne(d bson.D, e bson.E, now time.Time) bool {
	one := func(of any) bool {
		return slices.ContainsFunc(of.(bson.A), func(f any) bool { return matches(d, f.(bson.D), now) })
	}
	switch e.Key {
	case "$or":
		return one(e.Value)
	case "$nor":
		return !one(e.Value)
	case "$expr":
		return inTime(e.Value.(bson.D), now)
	}
	if strings.HasPrefix(e.Key, "$") {
		panic("mongosim: a filter has the unknown operator " + e.Key)
	}
	v, there := field(d, e.Key)
	tests, ok := e.Value.(bson.D)
	if !ok || len(tests) == 0 || !strings.HasPrefix(tests[0].Key, "$") {
		return equal(v, there, e.Value)
	}
	for _, test := range tests {
		if !passes(v, there, test) {
			return false
		}
	}
	return true
}

// inTime evaluates the one expression that is known: {$lte: ["$$NOW", T]}.
func inTime(expression bson.D, now time.Time) bool {
	of, ok := expression[0].Value.(bson.A)
	if expression[0].Key != "$lte" || !ok || of[0] != "$$NOW" {
		panic(fmt.Sprintf("mongosim: unknown expression %v", expression))
	}
	return bson.NewDateTimeFromTime(now) <= of[1].(bson.DateTime)
}

// equal reports whether a field equals a value, or is a list that contains it. Null equals an absent field.
func equal(v any, there bool, want any) bool {
	if want == nil {
		return !there || v == nil
	}
	if !there {
		return false
	}
	if list, ok := v.(bson.A); ok && rank(want) != rank(list) {
		return slices.ContainsFunc(list, func(one any) bool { return equal(one, true, want) })
	}
	return rank(v) == rank(want) && compare(v, want) == 0
}

func passes(v any, there bool, test bson.E) bool {
	ordered := func(accept func(int) bool) bool {
		return there && rank(v) == rank(test.Value) && accept(compare(v, test.Value))
	}
	switch test.Key {
	case "$eq":
		return equal(v, there, test.Value)
	case "$ne":
		return !equal(v, there, test.Value)
	case "$in":
		return slices.ContainsFunc(test.Value.(bson.A), func(one any) bool { return equal(v, there, one) })
	case "$nin":
		return !slices.ContainsFunc(test.Value.(bson.A), func(one any) bool { return equal(v, there, one) })
	case "$exists":
		want, isBool := test.Value.(bool)
		return there == (isBool && want)
	case "$gt":
		return ordered(func(d int) bool { return d > 0 })
	case "$gte":
		return ordered(func(d int) bool { return d >= 0 })
	case "$lt":
		return ordered(func(d int) bool { return d < 0 })
	case "$lte":
		return ordered(func(d int) bool { return d <= 0 })
	default:
		panic("mongosim: a filter has the unknown operator " + test.Key)
	}
}

// updated returns a document as an update changes it.
func updated(d, update bson.D) bson.D {
	for _, part := range update {
		for _, e := range part.Value.(bson.D) {
			present, there := field(d, e.Key)
			switch part.Key {
			case "$set":
				d = with(d, e.Key, e.Value)
			case "$unset":
				d = without(d, e.Key)
			case "$inc":
				d = with(d, e.Key, sum(present, e.Value))
			case "$max":
				if !there || compare(e.Value, present) > 0 {
					d = with(d, e.Key, e.Value)
				}
			default:
				panic("mongosim: an update has the unknown operator " + part.Key)
			}
		}
	}
	return d
}

func sum(a, b any) any {
	if a == nil {
		return b
	}
	return int64(number(a) + number(b))
}

// projected returns the fields of a document that a projection asks for.
func projected(d, projection bson.D) bson.D {
	if len(projection) == 0 {
		return d
	}
	wanted := func(e bson.E) bool {
		if b, ok := e.Value.(bool); ok {
			return b
		}
		return number(e.Value) != 0
	}
	inclusive, id := false, true
	for _, e := range projection {
		if e.Key == "_id" {
			id = wanted(e)
			inclusive = inclusive || id && len(projection) == 1
		} else if wanted(e) {
			inclusive = true
		}
	}
	if !inclusive {
		for _, e := range projection {
			d = without(d, e.Key)
		}
		return d
	}
	var out bson.D
	if v, ok := field(d, "_id"); ok && id {
		out = append(out, bson.E{Key: "_id", Value: v})
	}
	for _, e := range projection {
		if v, ok := field(d, e.Key); ok && e.Key != "_id" && wanted(e) {
			out = with(out, e.Key, v)
		}
	}
	return out
}

// bySort compares documents by a sort. An absent field sorts as null.
func bySort(a, b, sort bson.D) int {
	for _, e := range sort {
		x, _ := field(a, e.Key)
		y, _ := field(b, e.Key)
		if d := compare(x, y); d != 0 {
			return d * int(number(e.Value))
		}
	}
	return 0
}
