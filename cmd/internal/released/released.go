// Package released compares the program with a release: the HTTP API, the options, the variables and the metrics that
// users of the release rely on. Additions keep them working. A removal, another type, another default or a new
// requirement does not. It is used by tests only.
package released

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Surface has the items on which users rely, by name, such as "option serve --tick" or "schema Job.key".
type Surface map[string]Item

// Item is one thing that users rely on. Only those fields are set that belong to its kind.
type Item struct {
	// In reports that users send it, and Out that they receive it.
	In  bool `json:"in,omitempty"`
	Out bool `json:"out,omitempty"`
	// Parent is the item that this one is a part of; empty for none.
	Parent string `json:"parent,omitempty"`
	// Required is set if the parent must have it.
	Required bool `json:"required,omitempty"`
	// Type are the types of its values, and Refs the schemas.
	Type []string `json:"type,omitempty"`
	Refs []string `json:"refs,omitempty"`
	// Enum are the values that it can have; empty for any.
	Enum []string `json:"enum,omitempty"`
	// Closed is set if it can't have members that are not listed.
	Closed bool `json:"closed,omitempty"`
	// Bounds are limits of its value or size, by the name of the keyword.
	Bounds map[string]float64 `json:"bounds,omitempty"`
	// Exact are properties that can't change without a change of meaning, by name: a default, a pattern, the labels of a
	// metric, the variable of an option.
	Exact map[string]string `json:"exact,omitempty"`
}

// Parse reads the form that [Surface.Format] writes.
func Parse(text []byte) (Surface, error) {
	s := make(Surface)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("the released surface: %w", err)
	}
	return s, nil
}

// Format returns the surface as JSON, with a line for each item, in the order of the names.
func (s Surface) Format() []byte {
	var b bytes.Buffer
	separator := "{\n"
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "%s%s: %s", separator, encoded(name), encoded(s[name]))
		separator = ",\n"
	}
	b.WriteString("\n}\n")
	return b.Bytes()
}

func encoded(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // can't happen: it has plain values only
	}
	return strings.TrimSpace(b.String())
}

// Broken returns the breaking changes since a release, by name and in sentences, such as "NAME is gone".
func Broken(release, present Surface) map[string][]string {
	broken := make(map[string][]string)
	for name, was := range release {
		is, there := present[name]
		if !there {
			// The parent's removal says it for its parts.
			if _, still := present[was.Parent]; was.Parent == "" || still {
				broken[name] = []string{"is gone"}
			}
			continue
		}
		if found := changes(was, is); len(found) > 0 {
			broken[name] = found
		}
	}
	for name, is := range present {
		_, there := release[name]
		if parent, had := release[is.Parent]; !there && is.Required && is.In && had && parent.In {
			broken[name] = []string{"is required of requests, which requests of users of the release do not have"}
		}
	}
	return broken
}

// changes returns the breaking changes of an item.
func changes(was, is Item) (found []string) {
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if was.In && !is.In {
		add("can no longer be sent")
	}
	if was.Out && !is.Out {
		add("is no longer answered")
	}
	if was.In && is.Required && !was.Required {
		add("is required of requests, and was not")
	}
	if was.Out && was.Required && !is.Required {
		add("may be missing from answers, and was always there")
	}
	switch lost, gained := without(was.Type, is.Type), without(is.Type, was.Type); {
	case was.In && len(lost) > 0, was.Out && len(gained) > 0, len(was.Type) > 0 != (len(is.Type) > 0):
		add("has the type %s, and had %s", list(is.Type), list(was.Type))
	}
	if lost := without(was.Refs, is.Refs); len(lost) > 0 {
		add("can no longer be %s", list(lost))
	}
	switch lost := without(was.Enum, is.Enum); {
	case len(is.Enum) == 0:
	case len(was.Enum) == 0 && was.In:
		add("can be %s only, and could be anything", list(is.Enum))
	case len(was.Enum) > 0 && len(lost) > 0:
		add("can no longer be %s", list(lost))
	}
	if was.In && is.Closed && !was.Closed {
		add("can have no other members, and could")
	}
	return append(append(found, narrowed(was, is)...), altered(was, is)...)
}

// narrowed returns the bounds of requests that are tighter than they were.
func narrowed(was, is Item) (found []string) {
	if !was.In {
		return nil
	}
	for _, keyword := range slices.Sorted(maps.Keys(is.Bounds)) {
		bound, had := was.Bounds[keyword]
		lower := strings.HasPrefix(strings.ToLower(strings.TrimPrefix(keyword, "exclusive")), "min")
		switch now := is.Bounds[keyword]; {
		case !had:
			found = append(found, fmt.Sprintf("has the new bound %s of %v", keyword, now))
		case lower && now > bound, !lower && now < bound:
			found = append(found, fmt.Sprintf("has the bound %s of %v, and had %v", keyword, now, bound))
		}
	}
	return found
}

// altered returns the properties that have another value than they had.
func altered(was, is Item) (found []string) {
	names := make(map[string]bool)
	for name := range was.Exact {
		names[name] = true
	}
	for name := range is.Exact {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, had := was.Exact[name]
		now, has := is.Exact[name]
		switch {
		case had && !has:
			found = append(found, fmt.Sprintf("has no %s, and had %q", name, before))
		case !had:
			found = append(found, fmt.Sprintf("has the %s %q, and had none", name, now))
		case before != now:
			found = append(found, fmt.Sprintf("has the %s %q, and had %q", name, now, before))
		}
	}
	return found
}

// without returns those of a list that are not in another.
func without(all, others []string) (left []string) {
	for _, one := range all {
		if !slices.Contains(others, one) {
			left = append(left, one)
		}
	}
	return left
}

func list(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
