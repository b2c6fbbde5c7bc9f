package bench

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Work describes jobs to submit. Any process can generate the i-th of them.
type Work struct {
	// Prefix is the prefix of their keys.
	Prefix string `json:"prefix"`
	// Tenant owns the jobs; empty for the default tenant. Priority is their priority.
	Tenant   string       `json:"tenant"`
	Priority job.Priority `json:"priority"`
	// From is the number of the first job, and Count the number of jobs.
	From  int `json:"from"`
	Count int `json:"count"`
	// Callback is the callbacks' type, and Target their destination: a URL, a queue or a topic.
	Callback string `json:"callback"`
	Target   string `json:"target"`
	// Payload is the number of bytes of each delivery.
	Payload int `json:"payload"`
	// Start is the first instant, and Every the interval between instants.
	Start time.Time     `json:"start"`
	Every time.Duration `json:"every"`
	// Instants is the number of instants of each job; zero means one.
	Instants int `json:"instants"`
	// Crontab replaces the instants, if it is not empty; each job starts at the instant that it would have had.
	Crontab string `json:"crontab"`
}

// instant returns the instant of the i-th occurrence.
func (w *Work) instant(i int) time.Time { return w.Start.Add(time.Duration(i) * w.Every) }

// key returns the key of the i-th job. Keys are in no order, since a store could profit from an order that real keys
// don't have.
func (w *Work) key(i int) string {
	h := fnv.New64a()
	_, _ = h.Write(strconv.AppendInt(nil, int64(i), 10))
	return fmt.Sprintf("%s%016x-%d", w.Prefix, h.Sum64(), i)
}

// prefixOf returns the prefix of the work that a key belongs to.
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

// targetField maps a callback type to the field of the data that holds the destination.
var targetField = map[string]string{"http": "url", "rabbitmq": "queue", "kafka": "topic"}

// appendPayload appends the payload of the i-th job, w.Payload bytes long.
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
