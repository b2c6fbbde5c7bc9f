package released

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// AddSpecification adds the items of an OpenAPI specification in JSON.
func (s Surface) AddSpecification(text []byte) error {
	w := &walk{surface: s, seen: make(map[string]bool)}
	if err := json.Unmarshal(text, &w.spec); err != nil {
		return fmt.Errorf("the specification: %w", err)
	}
	for _, c := range []struct {
		section string
		// out is set if the service sends the requests, so users receive them.
		out bool
	}{{"paths", false}, {"webhooks", true}} {
		paths := object(w.spec[c.section])
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			item := object(paths[path])
			for _, method := range []string{"get", "put", "post", "patch", "delete", "head", "options"} {
				if operation := object(item[method]); operation != nil {
					w.operation(strings.ToUpper(method)+" "+path, item, operation, c.out)
				}
			}
		}
	}
	return w.err
}

// walk walks through a specification.
type walk struct {
	spec    map[string]any
	surface Surface
	seen    map[string]bool // schemas by name and direction
	err     error           // the first
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func array(v any) []any {
	a, _ := v.([]any)
	return a
}

// resolve returns the target of a reference, or the value itself if it is no reference.
func (w *walk) resolve(v any) map[string]any {
	o := object(v)
	reference, is := o["$ref"].(string)
	if !is {
		return o
	}
	found := w.spec
	for part := range strings.SplitSeq(strings.TrimPrefix(reference, "#/"), "/") {
		found = object(found[part])
	}
	if found == nil && w.err == nil {
		w.err = fmt.Errorf("the specification refers to %s, which it does not have", reference)
	}
	return found
}

// operation adds an operation: its parameters, its request and its answers.
func (w *walk) operation(name string, path, operation map[string]any, out bool) {
	w.surface[name] = Item{In: true, Out: true, Exact: texts(operation, "operationId", "x-permission", "x-extent")}
	for _, p := range slices.Concat(array(path["parameters"]), array(operation["parameters"])) {
		parameter := w.resolve(p)
		required, _ := parameter["required"].(bool)
		w.schema(fmt.Sprintf("%s %v %v", name, parameter["in"], parameter["name"]), name, parameter["schema"], required, out)
	}
	body := w.resolve(operation["requestBody"])
	required, _ := body["required"].(bool)
	for _, media := range slices.Sorted(maps.Keys(object(body["content"]))) {
		content := object(object(body["content"])[media])
		// One of several forms of a body is required, so none is by itself.
		w.schema(name+" body "+media, name, content["schema"], required && len(object(body["content"])) == 1, out)
	}
	answers := object(operation["responses"])
	for _, status := range slices.Sorted(maps.Keys(answers)) {
		answer := w.resolve(answers[status])
		named := name + " " + status
		w.surface[named] = Item{Out: !out, In: out, Parent: name}
		for _, header := range slices.Sorted(maps.Keys(object(answer["headers"]))) {
			h := w.resolve(object(answer["headers"])[header])
			w.schema(named+" header "+header, named, h["schema"], false, !out)
		}
		for _, media := range slices.Sorted(maps.Keys(object(answer["content"]))) {
			w.schema(named+" body "+media, named, object(object(answer["content"])[media])["schema"], false, !out)
		}
	}
}

// schema adds a schema under a name, and the schemas that it refers to.
func (w *walk) schema(name, parent string, v any, required, out bool) {
	schema := object(v)
	item := w.surface[name]
	item.In, item.Out = item.In || !out, item.Out || out
	item.Parent, item.Required = parent, required
	item.Type = strings.Fields(strings.Trim(fmt.Sprint(schema["type"]), "[]"))
	if schema["type"] == nil {
		item.Type = nil
	}
	item.Enum, item.Refs, item.Bounds = nil, nil, nil
	for _, one := range array(schema["enum"]) {
		item.Enum = append(item.Enum, fmt.Sprint(one))
	}
	item.Closed = schema["additionalProperties"] == false
	item.Exact = texts(schema, "default", "const", "format", "pattern")
	for keyword, value := range schema {
		if bound, is := value.(float64); is && keyword != "default" && keyword != "const" && keyword != "example" {
			if item.Bounds == nil {
				item.Bounds = make(map[string]float64)
			}
			item.Bounds[keyword] = bound
		}
	}
	w.refer(&item, schema, out)
	for _, keyword := range []string{"oneOf", "anyOf", "allOf"} {
		for i, alternative := range array(schema[keyword]) {
			if !w.refer(&item, object(alternative), out) {
				w.schema(fmt.Sprintf("%s %s %d", name, keyword, i+1), name, alternative, false, out)
			}
		}
	}
	w.surface[name] = item
	must := array(schema["required"])
	members := object(schema["properties"])
	for _, member := range slices.Sorted(maps.Keys(members)) {
		w.schema(name+"."+member, name, members[member], slices.Contains(must, any(member)), out)
	}
	if items := object(schema["items"]); items != nil {
		w.schema(name+"[]", name, items, false, out)
	}
	if others := object(schema["additionalProperties"]); len(others) > 0 {
		w.schema(name+".*", name, others, false, out)
	}
}

// refer adds the named schema that a schema refers to, if it does.
func (w *walk) refer(item *Item, schema map[string]any, out bool) bool {
	reference, is := schema["$ref"].(string)
	if !is {
		return false
	}
	named := reference[strings.LastIndex(reference, "/")+1:]
	item.Refs = append(item.Refs, named)
	if visited := fmt.Sprint(named, out); !w.seen[visited] {
		w.seen[visited] = true
		w.schema("schema "+named, "", w.resolve(schema), false, out)
	}
	return true
}

// texts returns those of the keywords that an object has, as texts.
func texts(o map[string]any, keywords ...string) map[string]string {
	var all map[string]string
	for _, keyword := range keywords {
		if v, has := o[keyword]; has {
			if all == nil {
				all = make(map[string]string)
			}
			all[keyword] = fmt.Sprint(v)
		}
	}
	return all
}
