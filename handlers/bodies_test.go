package handlers_test

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// at writes an instant relative to the clock's start.
func at(offset time.Duration) string { return job.FormatTime(start.Add(offset)) }

// body writes a job with instants relative to the clock's start.
func body(key string, offsets ...time.Duration) string {
	schedules := make([]string, len(offsets))
	for i, o := range offsets {
		schedules[i] = at(o)
	}
	return encode(map[string]any{"key": key, "schedules": schedules, "callback": map[string]any{"type": "http", "data": 1}})
}

// recurring writes a job with a crontab.
func recurring(key, crontab string, members ...any) string {
	return with(body(key), slices.Concat([]any{"schedules", nil, "crontab", crontab}, members)...)
}

// sequence writes a job with steps.
func sequence(key string, steps []any, members ...any) string {
	return with(body(key), slices.Concat([]any{"schedules", nil, "steps", steps}, members)...)
}

// Steps of a sequence.
func fire(metadata ...any) any {
	if len(metadata) > 0 {
		return map[string]any{"type": "job", "metadata": metadata[0]}
	}
	return map[string]any{"type": "job"}
}

func wait(period float64, unit string) any {
	return map[string]any{"type": "wait_certain_period", "delay_period": period, "delay_unit": unit}
}

// with adds members to an encoded object; nil removes one.
func with(object string, members ...any) string {
	var m map[string]any
	if err := json.Unmarshal([]byte(object), &m); err != nil {
		panic(err)
	}
	for i := 0; i < len(members); i += 2 {
		if name := members[i].(string); members[i+1] == nil {
			delete(m, name)
		} else {
			m[name] = members[i+1]
		}
	}
	return encode(m)
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
