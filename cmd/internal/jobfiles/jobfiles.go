// Package jobfiles reads jobs from files, and compares them with jobs of a service. It does no I/O but the reading of
// files.
package jobfiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	marshaler "github.com/go-json-experiment/json"
	"github.com/goccy/go-yaml"

	"github.com/carillon-scheduler/carillon/job"
)

// Job is a job in a file.
type Job struct {
	// Key is the job's key.
	Key string
	// Body is the job as JSON, as it is submitted. A payload in a JSON file keeps its bytes.
	Body json.RawMessage
	// At is its place, for messages.
	At string
	// Ended reports that all of its instants have passed, so that there is nothing to create.
	Ended bool

	normal map[string]any
}

// unlimited are limits that no job exceeds: the service has its own.
var unlimited = job.Limits{Instants: 1 << 40, Payload: 1 << 40}

// Read reads all jobs in a file, or in the files of a folder and those below it whose names end in .yaml, .yml or
// .json. A file has one job, a list of jobs, or several documents of YAML. The error names every job that is wrong,
// and where.
func Read(name string, now time.Time) ([]Job, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return read([]string{name}, now)
	}
	var files []string
	err = filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != name && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return filepath.SkipDir
			}
		case !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no file whose name ends in .yaml, .yml or .json", name)
	}
	return read(files, now)
}

func read(files []string, now time.Time) (all []Job, err error) {
	var errs []error
	at := make(map[string]string) // by key
	for _, file := range files {
		content, err := os.ReadFile(file) //nolint:gosec // the user names it
		if err != nil {
			return nil, err
		}
		bodies, err := split(content)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		for i, body := range bodies {
			where := file
			if len(bodies) > 1 {
				where = fmt.Sprintf("%s, job %d", file, i+1)
			}
			j, err := newJob(body, where, now)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", where, err))
				continue
			}
			if other, twice := at[j.Key]; twice {
				errs = append(errs, fmt.Errorf("%s: the key %q is also in %s", where, j.Key, other))
			}
			at[j.Key] = where
			all = append(all, j)
		}
	}
	slices.SortFunc(all, func(a, b Job) int { return strings.Compare(a.Key, b.Key) })
	return all, errors.Join(errs...)
}

// split returns the jobs in a file.
func split(content []byte) (bodies []json.RawMessage, err error) {
	if json.Valid(content) {
		return items(content)
	}
	// The parser joins a document to a preceding one that has only comments, so documents are separated here.
	for document := range bytes.SplitSeq(marker.ReplaceAll(content, []byte("\x00")), []byte("\x00")) {
		converted, err := yaml.YAMLToJSON(document)
		if err != nil {
			return nil, fmt.Errorf("neither JSON nor YAML: %s", firstLine(err))
		}
		more, err := items(converted)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, more...)
	}
	return bodies, nil
}

// marker begins a document of YAML. It can't stand in a text, which would be indented or quoted.
var marker = regexp.MustCompile(`(?m)^---([ \t]|$)`)

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// items returns the jobs of a document: a job, or a list of jobs.
func items(document []byte) ([]json.RawMessage, error) {
	document = bytes.TrimSpace(document)
	if len(document) == 0 || string(document) == "null" {
		return nil, nil
	}
	if document[0] != '[' {
		return []json.RawMessage{document}, nil
	}
	var all []json.RawMessage
	err := json.Unmarshal(document, &all)
	return all, err
}

// newJob checks a job of a file.
func newJob(body json.RawMessage, where string, now time.Time) (Job, error) {
	// Editors find the schema by it; it is no field of a job.
	body = without(body, "$schema")
	draft, err := job.Decode(body)
	if err != nil {
		return Job{}, err
	}
	if draft.Key == "" {
		return Job{}, errors.New("/key: is required")
	}
	if draft.Delay != nil {
		return Job{}, errors.New("/delay: begins whenever it is submitted, so a file can't have it; give schedules")
	}
	if draft.Steps != nil && draft.StartAt == nil {
		return Job{}, errors.New("/startAt: is required beside steps in a file: otherwise each change of the file would " +
			"begin the sequence again")
	}
	j, err := draft.Job(job.DefaultTenant, unlimited)
	if err != nil {
		return Job{}, err
	}
	ended := !j.Schedule.EndAt.IsZero() && j.Schedule.EndAt.Before(now)
	if n := len(j.Schedule.Instants); n > 0 && draft.PastOrDefault() != job.PastFire {
		ended = !j.Schedule.Instants[n-1].After(now)
	}
	if draft.Past == nil && draft.Steps == nil && draft.Crontab == nil {
		// A job that was swept after its last instant must not fire again because it is in a file.
		body = with(body, "past", string(job.PastSkip))
	}
	normal, err := normalForm(&j)
	return Job{Key: draft.Key, Body: body, At: where, Ended: ended, normal: normal}, err
}

// without takes a member out of an object, if it is there.
func without(body json.RawMessage, member string) json.RawMessage {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members[member] == nil {
		return body // a value that is no object is refused when it is decoded
	}
	delete(members, member)
	return object(members)
}

// object makes an object of members, which keep their bytes.
func object(members map[string]json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(members)) {
		b.WriteString(map[bool]string{true: "{", false: ","}[b.Len() == 0])
		quoted, _ := json.Marshal(name) // a text can be written
		b.Write(quoted)
		b.WriteByte(':')
		b.Write(members[name])
	}
	if b.Len() == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes()
}

// with adds a member to an object.
func with(body json.RawMessage, member, text string) json.RawMessage {
	end := bytes.LastIndexByte(body, '}')
	return slices.Concat(body[:end], fmt.Appendf(nil, ",%q:%q", member, text), body[end:])
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// normalForm returns a job as it is compared: as its client could submit it again, with the defaults of retries filled
// in.
func normalForm(j *job.Job) (map[string]any, error) {
	d := j.Draft()
	d.Past = nil
	b, err := marshaler.Marshal(d)
	if err != nil {
		return nil, err
	}
	v, err := decode(b)
	if err != nil {
		return nil, err
	}
	retry, err := marshaler.Marshal(j.Options.Retry.WithDefaults())
	if err != nil {
		return nil, err
	}
	v["retry"], err = decode(retry)
	return v, err
}

func decode(b []byte) (v map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// Normal returns the normal form of a job as the service shows it. The fields of a submission are those that it has;
// others, such as the state, are left out.
func Normal(shown json.RawMessage, fields []string) (map[string]any, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(shown, &members); err != nil {
		return nil, err
	}
	for name := range members {
		if !slices.Contains(fields, name) {
			delete(members, name)
		}
	}
	draft, err := job.Decode(object(members))
	if err != nil {
		return nil, err
	}
	j, err := draft.Job(job.DefaultTenant, unlimited)
	if err != nil {
		return nil, err
	}
	return normalForm(&j)
}

// Change is a difference of one field.
type Change struct {
	// Field is a JSON Pointer.
	Field string
	// From and To are values as compact JSON; empty if the field is not there.
	From, To string
}

// Changes returns the differences between a job of the service, in normal form, and the job in the file, by the names
// of their fields. Nil is none.
func (j *Job) Changes(present map[string]any) (changes []Change) {
	compare("", present, j.normal, &changes)
	return changes
}

// compare compares two values; nil stands for one that is not there.
func compare(pointer string, from, to any, changes *[]Change) {
	before, isObject := from.(map[string]any)
	after, both := to.(map[string]any)
	if isObject && both {
		var names []string
		for name := range before {
			names = append(names, name)
		}
		for name := range after {
			if _, ok := before[name]; !ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		escape := strings.NewReplacer("~", "~0", "/", "~1")
		for _, name := range names {
			f, hasFrom := before[name]
			t, hasTo := after[name]
			if hasFrom != hasTo {
				*changes = append(*changes, Change{pointer + "/" + escape.Replace(name), shown(f, hasFrom), shown(t, hasTo)})
				continue
			}
			compare(pointer+"/"+escape.Replace(name), f, t, changes)
		}
		return
	}
	if f, t := shown(from, true), shown(to, true); f != t {
		*changes = append(*changes, Change{pointer, f, t})
	}
}

func shown(v any, there bool) string {
	if !there {
		return ""
	}
	b, err := marshal(v)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}
