package bench

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Work describes jobs to submit, so that any process can make the i-th of them.
type Work struct {
	// Prefix begins their keys.
	Prefix string `json:"prefix"`
	// Tenant owns them; empty for the default one. Priority is theirs, if they have one.
	Tenant   string       `json:"tenant"`
	Priority job.Priority `json:"priority"`
	// From is the number of the first, Count how many there are.
	From  int `json:"from"`
	Count int `json:"count"`
	// Callback is their type and Target where it goes: a URL, a queue or a topic.
	Callback string `json:"callback"`
	Target   string `json:"target"`
	// Payload is how many bytes each delivers.
	Payload int `json:"payload"`
	// Start is the instant of the first, and Every lies between one and the next.
	Start time.Time     `json:"start"`
	Every time.Duration `json:"every"`
	// Instants is how many each job has, one after the other; zero is one.
	Instants int `json:"instants"`
	// Crontab is the jobs' crontab, if they have one; they begin at the instants they would have fired at.
	Crontab string `json:"crontab"`
}

// instant is that of the i-th occurrence.
func (w *Work) instant(i int) time.Time { return w.Start.Add(time.Duration(i) * w.Every) }

// key is that of the i-th job: in no order, as keys in life are in none that a store could profit from.
func (w *Work) key(i int) string {
	h := fnv.New64a()
	_, _ = h.Write(strconv.AppendInt(nil, int64(i), 10))
	return fmt.Sprintf("%s%016x-%d", w.Prefix, h.Sum64(), i)
}

// prefixOf is the prefix of the work that a key is of.
func prefixOf(key string) string {
	const hash = 16 // digits, before the number
	return key[:max(0, strings.LastIndexByte(key, '-')-hash)]
}

// appendJob appends the body of the i-th job.
func (w *Work) appendJob(b []byte, i int) []byte {
	b = append(b, `{"key":"`...)
	b = append(b, w.key(i)...)
	if w.Crontab != "" {
		b = append(b, `","crontab":"`...)
		b = append(b, w.Crontab...)
		b = append(b, `","startAt":"`...)
		b = append(b, job.FormatTime(job.CeilMilli(w.instant(i)))...)
		b = append(b, `"`...)
	} else {
		b = append(b, `","past":"fire","schedules":[`...)
		n := max(w.Instants, 1)
		for k := range n {
			if k > 0 {
				b = append(b, ',')
			}
			b = append(b, '"')
			b = append(b, job.FormatTime(job.CeilMilli(w.instant(i*n+k)))...)
			b = append(b, '"')
		}
		b = append(b, ']')
	}
	if w.Priority != job.PriorityDefault {
		b = append(b, `,"priority":"`...)
		b = append(b, w.Priority...)
		b = append(b, '"')
	}
	b = append(b, `,"callback":{"type":"`...)
	b = append(b, w.Callback...)
	b = append(b, `","data":`...)
	b = w.appendData(b, i)
	return append(b, `}}`...)
}

// appendData appends the data of the i-th job's callback.
func (w *Work) appendData(b []byte, i int) []byte {
	b = append(b, '{')
	if field := targetField[w.Callback]; field != "" {
		b = append(b, `"`+field+`":"`...)
		b = append(b, w.Target...)
		b = append(b, `",`...)
	}
	b = append(b, `"payload":`...)
	b = w.appendPayload(b, i)
	return append(b, '}')
}

// targetField is the field of a callback's data that says where it goes.
var targetField = map[string]string{"http": "url", "rabbitmq": "queue", "kafka": "topic"}

// appendPayload appends the payload of the i-th job, of as many bytes as are asked for.
func (w *Work) appendPayload(b []byte, i int) []byte {
	begin := len(b)
	b = append(b, `{"n":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"text":"`...)
	for n := 0; len(b)-begin < w.Payload-2; n++ {
		b = append(b, "abcdefghijklmnopqrstuvwxyz "[n%27])
	}
	return append(b, `"}`...)
}
