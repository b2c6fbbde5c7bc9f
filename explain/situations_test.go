package explain_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// situation is a course of events, and the question about an instant of the job "k" that follows.
type situation struct {
	name string
	keep keeps
	// cause makes it happen, and returns the instant to ask about.
	cause func(w *world) (at string)
	// codes are those of the facts.
	codes string
	// random means that some times in the answer are random.
	random bool
}

// The virtual clock begins at midnight of 2000-01-01, a Saturday.
var situations = []situation{
	{
		name: "not due yet",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(26*time.Hour))
			return "next"
		},
		codes: "waiting",
	},
	{
		name: "not due yet, and moved by a spread",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour)+`,"spread":"10m"`)
			return "next"
		},
		codes: "waiting moved",
	},
	{
		name: "a crontab's instant in three days",
		cause: func(w *world) string {
			w.put("k", `"crontab":"0 9 * * *"`)
			return w.after(81 * time.Hour)
		},
		codes: "not_expanded_yet",
	},
	{
		name: "being sent",
		cause: func(w *world) string {
			w.replica()
			w.hangs(20 * time.Second)
			w.put("k", w.at(time.Second))
			w.until(6 * time.Second)
			return w.after(time.Second)
		},
		codes: "held",
	},
	{
		name: "being sent for the second time",
		cause: func(w *world) string {
			w.replica()
			w.refuses(503, 40*time.Second)
			w.put("k", w.at(time.Second))
			w.until(30 * time.Second)
			w.hangs(20 * time.Second)
			w.until(45 * time.Second)
			return "next"
		},
		codes: "held retrying",
	},
	{
		name: "delivered on time",
		cause: func(w *world) string {
			w.replica()
			w.hangs(12 * time.Millisecond)
			w.put("k", w.at(time.Minute))
			w.until(10 * time.Minute)
			return w.after(time.Minute)
		},
		codes: "delivered",
	},
	{
		name: "delivered on the third attempt",
		cause: func(w *world) string {
			w.replica()
			w.refuses(429, 40*time.Second)
			w.put("k", w.at(time.Second))
			w.until(70 * time.Second)
			w.answers(nil)
			w.until(10 * time.Minute)
			return w.after(time.Second)
		},
		codes: "delivered retrying",
	},
	{
		name: "delivered late, since no replica was running",
		cause: func(w *world) string {
			w.put("k", w.at(time.Minute))
			w.until(30 * time.Minute)
			w.replica()
			w.until(32 * time.Minute)
			return w.after(time.Minute)
		},
		codes: "delivered",
	},
	{
		name: "delivered at the time of its spread, and asked about by it",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(10*time.Minute)+`,"spread":"10m"`)
			moved := w.explain("k", "next").FiresAt
			w.until(25 * time.Minute)
			return moved
		},
		codes: "delivered moved",
	},
	{
		name: "the last instant of a crontab",
		cause: func(w *world) string {
			w.replica()
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(65 * time.Minute)
			return "last"
		},
		codes: "delivered",
	},
	{
		name: "refused once",
		cause: func(w *world) string {
			w.replica()
			w.refuses(503, 40*time.Second)
			w.put("k", w.at(time.Second))
			w.until(11 * time.Second)
			return "next"
		},
		codes: "retrying",
	},
	{
		name: "refused twice of five times, without a status",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error {
				return callbacks.RetryAfter(errHungUp, 10*time.Minute)
			})
			w.put("k", w.at(time.Second)+`,"retry":{"maxAttempts":5}`)
			w.until(15 * time.Minute)
			return w.after(time.Second)
		},
		codes: "retrying",
	},
	{
		name: "the sender has no connection",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error {
				return callbacks.Unavailable(fmt.Errorf("the broker is away"), 20*time.Second)
			})
			w.put("k", w.at(time.Second))
			w.until(5 * time.Second)
			return "next"
		},
		codes: "released", random: true,
	},
	{
		name: "the destination is down, and the attempt has failed before",
		cause: func(w *world) string {
			w.failures = 2
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.RetryAfter(errHungUp, time.Hour) })
			w.put("k", w.at(time.Second))
			w.put("other", w.at(2*time.Second))
			w.until(30 * time.Second)
			return "next"
		},
		codes: "retrying destination_down",
	},
	{
		name: "the destination is down, and it was not sent",
		cause: func(w *world) string {
			w.failures = 2
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return errHungUp })
			for i := range 5 {
				w.put(fmt.Sprint("other", i), w.at(time.Second))
			}
			w.put("k", w.at(3*time.Second))
			w.until(3100 * time.Millisecond)
			return "next"
		},
		codes: "destination_down", random: true,
	},
	{
		name: "the destination is down, ahead of time",
		cause: func(w *world) string {
			w.failures = 2
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return errHungUp })
			for i := range 5 {
				w.put(fmt.Sprint("other", i), w.at(time.Second))
			}
			w.put("k", w.at(time.Hour))
			w.until(30 * time.Second)
			return "next"
		},
		codes:  "waiting destination_down",
		random: true,
	},
	{
		name: "the destination is at its rate",
		cause: func(w *world) string {
			w.replica()
			w.put("first", w.at(time.Second)+`,"destination":{"ratePerSecond":0.01}`)
			w.put("k", w.at(2*time.Second)+`,"destination":{"ratePerSecond":0.01}`)
			w.until(3 * time.Second)
			return "next"
		},
		codes: "destination_limited", random: true,
	},
	{
		name: "the destination has as many callbacks under way as it may",
		cause: func(w *world) string {
			w.replica()
			w.hangs(25 * time.Second)
			w.put("first", w.at(time.Second)+`,"destination":{"maxInFlight":1}`)
			w.put("k", w.at(2*time.Second)+`,"destination":{"maxInFlight":1}`)
			w.until(2500 * time.Millisecond)
			return "next"
		},
		codes: "destination_limited", random: true,
	},
	{
		name: "due, and nothing is before it",
		cause: func(w *world) string {
			w.concurrency = 1
			w.replica()
			w.hangs(20 * time.Second)
			w.put("first", w.at(time.Second))
			w.put("k", w.at(2*time.Second))
			w.until(10 * time.Second)
			return "next"
		},
		codes: "due",
	},
	{
		name: "due, behind a backlog",
		cause: func(w *world) string {
			w.concurrency = 1
			w.replica()
			w.hangs(4 * time.Second)
			for i := range 20 {
				w.put(fmt.Sprint("other", i), w.at(time.Second))
			}
			w.put("k", w.at(2*time.Second))
			w.until(23 * time.Second)
			return "next"
		},
		codes: "backlog",
	},
	{
		name: "due, behind a backlog that it shares with another tenant",
		cause: func(w *world) string {
			w.concurrency = 1
			w.replica()
			w.hangs(4 * time.Second)
			w.do("PUT", "/v1/tenants/acme", `{"weight":3}`)
			for i := range 20 {
				w.put(fmt.Sprint("other", i), w.at(time.Second))
				w.put(fmt.Sprint("other", i), w.at(time.Second), "Carillon-Tenant: acme")
			}
			w.put("k", w.at(2*time.Second))
			w.until(23 * time.Second)
			return "next"
		},
		codes: "backlog",
	},
	{
		name: "due, and the tenant has as many callbacks under way as it may",
		cause: func(w *world) string {
			w.do("PUT", "/v1/tenants/default", `{"maxInFlight":1}`)
			w.replica()
			w.hangs(20 * time.Second)
			w.put("first", w.at(time.Second))
			w.put("k", w.at(2*time.Second))
			w.until(10 * time.Second)
			return "next"
		},
		codes: "due tenant_limited",
	},
	{
		name: "due, and no replica is running",
		cause: func(w *world) string {
			w.put("k", w.at(time.Second))
			w.until(time.Minute)
			return "next"
		},
		codes: "no_replica",
	},
	{
		name: "its replica has died",
		cause: func(w *world) string {
			w.put("k", w.at(time.Second))
			w.until(2 * time.Second)
			w.claim()
			w.until(65 * time.Second)
			return "next"
		},
		codes: "lease_over",
	},
	{
		name: "its replica has died, and another one has delivered it",
		cause: func(w *world) string {
			w.put("k", w.at(time.Second))
			w.until(2 * time.Second)
			w.claim()
			w.replica()
			w.until(5 * time.Minute)
			return "last"
		},
		codes: "delivered lease_over",
	},
	{
		name: "its replica has died, and another one sends it",
		cause: func(w *world) string {
			w.put("k", w.at(time.Second))
			w.until(2 * time.Second)
			w.claim()
			w.hangs(20 * time.Second)
			w.replica()
			w.until(65 * time.Second)
			return "last"
		},
		codes: "held lease_over",
	},
	{
		name: "its tenant is paused, and is paused again",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(time.Hour))
			w.until(time.Minute)
			w.do("PUT", "/v1/tenants/default", `{"paused":true}`)
			w.until(2 * time.Minute)
			w.do("PUT", "/v1/tenants/default", `{"paused":true,"weight":2}`, "Authorization: Bearer bob")
			w.until(2 * time.Hour)
			return "next"
		},
		codes: "tenant_paused",
	},
	{
		name: "its tenant is paused, long before it is due",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.do("PUT", "/v1/tenants/default", `{"paused":true}`)
			w.until(time.Minute)
			return "next"
		},
		codes: "tenant_paused waiting",
	},
	{
		name: "its job is paused, and its time has passed",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(10*time.Minute))
			w.until(time.Minute)
			w.do("POST", "/v1/jobs/k/pause", "")
			w.until(20 * time.Minute)
			return w.after(10 * time.Minute)
		},
		codes: "job_paused",
	},
	{
		name: "its job is paused, long before it is due",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.do("POST", "/v1/jobs/k/pause", "")
			w.until(time.Minute)
			return "next"
		},
		codes: "job_paused waiting",
	},
	{
		name: "its crontab is paused, and not expanded so far",
		cause: func(w *world) string {
			w.replica()
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(time.Minute)
			w.do("POST", "/v1/jobs/k/pause", "")
			w.until(50 * time.Minute)
			return w.after(40 * time.Minute)
		},
		codes: "job_paused",
	},
	{
		name: "delivered when its job was resumed",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(10*time.Minute))
			w.do("POST", "/v1/jobs/k/pause", "")
			w.until(20 * time.Minute)
			w.do("POST", "/v1/jobs/k/resume", "")
			w.until(30 * time.Minute)
			return w.after(10 * time.Minute)
		},
		codes: "delivered",
	},
	{
		name: "too late by its deadline",
		cause: func(w *world) string {
			w.put("k", w.at(time.Minute)+`,"deadline":"5m"`)
			w.until(10 * time.Minute)
			w.replica()
			w.until(15 * time.Minute)
			return w.after(time.Minute)
		},
		codes: "missed",
	},
	{
		name: "its deadline had passed when it was submitted",
		cause: func(w *world) string {
			w.until(10 * time.Minute)
			w.put("k", w.at(time.Minute)+`,"deadline":"5m"`)
			w.until(2 * time.Hour)
			return w.after(time.Minute)
		},
		codes: "missed",
	},
	{
		name: "dropped for a later instant of its crontab, when it was claimed",
		cause: func(w *world) string {
			w.put("k", `"crontab":"*/10 * * * * *"`)
			w.until(101 * time.Second)
			w.replica()
			w.until(2 * time.Minute)
			return w.after(20 * time.Second)
		},
		codes: "missed",
	},
	{
		name: "dropped for a later instant of its crontab, when that was expanded",
		cause: func(w *world) string {
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(50 * time.Minute)
			w.replica()
			w.until(52 * time.Minute)
			return w.after(30 * time.Minute)
		},
		codes: "missed",
	},
	{
		name: "the latest that was dropped for a later instant, without history",
		keep: keeps{nothing: true},
		cause: func(w *world) string {
			w.put("k", `"crontab":"*/10 * * * *","catchUp":"none"`)
			w.until(3*time.Hour + time.Minute)
			w.replica()
			w.until(3*time.Hour + 5*time.Minute)
			return w.after(3 * time.Hour)
		},
		codes: "missed",
	},
	{
		name: "the crontab is late to be expanded",
		cause: func(w *world) string {
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(3 * time.Hour)
			return w.after(100 * time.Minute)
		},
		codes: "not_expanded_yet",
	},
	{
		name: "cancelled before its time",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(10*time.Minute))
			w.until(time.Minute)
			w.do("DELETE", "/v1/jobs/k", "", "Authorization: Bearer bob")
			w.until(15 * time.Minute)
			return w.after(10 * time.Minute)
		},
		codes: "cancelled",
	},
	{
		name: "cancelled a moment ago",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.until(time.Minute + time.Second/3) // between two of history's writes
			w.do("DELETE", "/v1/jobs/k", "")
			return "next"
		},
		codes: "unknown",
	},
	{
		name: "cancelled, and no instant is named",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.until(time.Minute)
			w.do("DELETE", "/v1/jobs?prefix=k", "")
			w.until(2 * time.Hour)
			return "next"
		},
		codes: "cancelled",
	},
	{
		name: "cancelled while it was being sent, which failed",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error {
				time.Sleep(5 * time.Second)
				return errHungUp
			})
			w.put("k", w.at(time.Second))
			w.until(3 * time.Second)
			w.do("DELETE", "/v1/jobs/k", "")
			w.until(10 * time.Minute)
			return w.after(time.Second)
		},
		codes: "cancelled retrying",
	},
	{
		name: "delivered, though it was cancelled while it was being sent",
		cause: func(w *world) string {
			w.replica()
			w.hangs(5 * time.Second)
			w.put("k", w.at(time.Second))
			w.until(3 * time.Second)
			w.do("DELETE", "/v1/jobs/k", "")
			w.until(10 * time.Minute)
			return "last"
		},
		codes: "delivered",
	},
	{
		name: "cancelled, and created again later",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.until(time.Minute)
			w.do("DELETE", "/v1/jobs/k", "", "Authorization: Bearer bob")
			w.until(2 * time.Hour)
			w.put("k", w.at(3*time.Hour))
			return w.after(time.Hour)
		},
		codes: "no_such_instant cancelled",
	},
	{
		name: "replaced twice, while it was paused",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.do("POST", "/v1/jobs/k/pause", "")
			w.until(2 * time.Hour)
			w.put("k", w.at(5*time.Hour), "Authorization: Bearer bob")
			w.until(3 * time.Hour)
			w.put("k", w.at(6*time.Hour), "Authorization: Bearer eve")
			return w.after(time.Hour)
		},
		codes: "replaced",
	},
	{
		name: "replaced by other instants",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(time.Hour))
			w.until(time.Minute)
			w.put("k", w.at(3*time.Hour), "Authorization: Bearer bob")
			w.until(2 * time.Minute)
			return w.after(time.Hour)
		},
		codes: "no_such_instant replaced",
	},
	{
		name: "replaced by other instants a moment ago",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			w.until(time.Minute + 300*time.Millisecond) // not just as history is written
			w.put("k", w.at(3*time.Hour), "Authorization: Bearer bob")
			return w.after(time.Hour)
		},
		codes: "no_such_instant replaced",
	},
	{
		name: "replaced after its time had come, while it was paused",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(10*time.Minute))
			w.do("POST", "/v1/jobs/k/pause", "")
			w.until(20 * time.Minute)
			w.put("k", w.at(5*time.Hour), "Authorization: Bearer bob")
			w.until(30 * time.Minute)
			return w.after(10 * time.Minute)
		},
		codes: "replaced",
	},
	{
		name: "before its job was replaced, without history",
		keep: keeps{nothing: true},
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(10*time.Minute))
			w.until(20 * time.Minute)
			w.put("k", w.at(5*time.Hour))
			return w.after(10 * time.Minute)
		},
		codes: "replaced not_kept",
	},
	{
		name: "replaced while it waited for its next attempt",
		cause: func(w *world) string {
			w.replica()
			w.refuses(503, 5*time.Minute)
			w.put("k", w.at(time.Second))
			w.until(time.Minute)
			w.put("k", w.at(3*time.Hour))
			w.until(15 * time.Minute)
			return w.after(time.Second)
		},
		codes: "replaced retrying",
	},
	{
		name: "refused for good",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Refused(refusal(410)) })
			w.put("k", w.at(time.Second))
			w.until(10 * time.Minute)
			return w.after(time.Second)
		},
		codes: "dead",
	},
	{
		name: "given up after all attempts, without history",
		keep: keeps{nothing: true},
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.RetryAfter(errHungUp, time.Minute) })
			w.put("k", w.at(time.Second)+`,"retry":{"maxAttempts":3}`)
			w.until(10 * time.Minute)
			return w.after(time.Second)
		},
		codes: "dead",
	},
	{
		name: "given up, and the retention of its dead letter is over",
		cause: func(w *world) string {
			w.deadRetain = time.Minute
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Refused(refusal(410)) })
			w.put("k", w.at(time.Second))
			w.until(10 * time.Minute)
			return w.after(time.Second)
		},
		codes: "dead",
	},
	{
		name: "given up, and the retention of its dead letter is over, without history",
		keep: keeps{nothing: true},
		cause: func(w *world) string {
			w.deadRetain = time.Minute
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Refused(refusal(410)) })
			w.put("k", w.at(time.Second))
			w.until(10 * time.Minute)
			return w.after(time.Second)
		},
		codes: "dead not_kept",
	},
	{
		name: "given up, and its dead letter was deleted",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Refused(refusal(410)) })
			w.put("k", w.at(time.Second))
			w.until(10 * time.Minute)
			w.do("DELETE", "/v1/dead-letters?key=k", "", "Authorization: Bearer bob")
			w.until(15 * time.Minute)
			return w.after(time.Second)
		},
		codes: "discarded dead",
	},
	{
		name: "given up, since the next attempt would come after the deadline",
		cause: func(w *world) string {
			w.replica()
			w.refuses(503, time.Hour)
			w.put("k", w.at(time.Second)+`,"deadline":"5m"`)
			w.until(time.Minute)
			return w.after(time.Second)
		},
		codes: "dead",
	},
	{
		name: "redriven, and delivered then",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Refused(refusal(410)) })
			w.put("k", w.at(time.Second))
			w.until(10 * time.Minute)
			w.answers(nil)
			w.do("POST", "/v1/dead-letters/redrive?key=k", "", "Authorization: Bearer bob")
			w.until(15 * time.Minute)
			return w.after(time.Second)
		},
		codes: "delivered dead redriven",
	},
	{
		name: "redriven, and being retried, though its job is paused",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Refused(refusal(410)) })
			w.put("k", w.at(time.Second))
			w.until(10 * time.Minute)
			w.do("POST", "/v1/jobs/k/pause", "")
			w.refuses(503, time.Hour)
			w.do("POST", "/v1/dead-letters/redrive?key=k", "")
			w.until(11 * time.Minute)
			return w.after(time.Second)
		},
		codes: "retrying redriven",
	},
	{
		name: "triggered",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(time.Hour))
			w.until(time.Minute)
			w.do("POST", "/v1/jobs/k/trigger", "", "Authorization: Bearer bob")
			w.until(2 * time.Minute)
			return w.after(time.Minute)
		},
		codes: "delivered triggered",
	},
	{
		name: "no instant of a list",
		cause: func(w *world) string {
			w.put("k", fmt.Sprintf(`"schedules":[%q,%q]`, w.after(time.Hour), w.after(3*time.Hour)))
			return w.after(2 * time.Hour)
		},
		codes: "no_such_instant",
	},
	{
		name: "no instant of a crontab",
		cause: func(w *world) string {
			w.put("k", `"crontab":"0 9 * * 1-5","timezone":"Europe/Berlin"`)
			return w.after(9 * time.Hour)
		},
		codes: "no_such_instant",
	},
	{
		name: "no instant of a crontab with H",
		cause: func(w *world) string {
			w.put("k", `"crontab":"H 9 * * *"`)
			return w.after(9 * time.Hour)
		},
		codes: "no_such_instant",
	},
	{
		name: "after the end of a crontab",
		cause: func(w *world) string {
			w.put("k", fmt.Sprintf(`"crontab":"0 * * * *","endAt":%q`, w.after(5*time.Hour)))
			return w.after(6 * time.Hour)
		},
		codes: "no_such_instant",
	},
	{
		name: "before the job was created",
		cause: func(w *world) string {
			w.until(2*time.Hour + time.Minute)
			w.put("k", `"crontab":"0 * * * *"`)
			return w.after(time.Hour)
		},
		codes: "no_such_instant",
	},
	{
		name: "a fixed time that clocks skip",
		cause: func(w *world) string {
			w.put("k", `"crontab":"30 2 * * *","timezone":"Europe/Berlin"`)
			return "2000-03-26T02:30:00+01:00"
		},
		codes: "skipped_by_clock_change",
	},
	{
		name: "a fixed time that clocks skip, with the later offset",
		cause: func(w *world) string {
			w.put("k", `"crontab":"30 2 * * *","timezone":"Europe/Berlin"`)
			return "2000-03-26T02:30:00+02:00"
		},
		codes: "skipped_by_clock_change",
	},
	{
		name: "the instant that fires for a fixed time that clocks skip",
		cause: func(w *world) string {
			w.put("k", `"crontab":"30 2 * * *","timezone":"Europe/Berlin"`)
			return "2000-03-26T01:00:00Z"
		},
		codes: "not_expanded_yet moved",
	},
	{
		name: "a time with a star that clocks skip",
		cause: func(w *world) string {
			w.put("k", `"crontab":"*/20 2 * * *","timezone":"Europe/Berlin"`)
			return "2000-03-26T02:20:00+01:00"
		},
		codes: "skipped_by_clock_change",
	},
	{
		name: "the second showing of a fixed time",
		cause: func(w *world) string {
			w.put("k", `"crontab":"30 2 * * *","timezone":"Europe/Berlin"`)
			return "2000-10-29T02:30:00+01:00"
		},
		codes: "skipped_by_clock_change",
	},
	{
		name: "past when it was submitted, and skipped",
		cause: func(w *world) string {
			w.until(10 * time.Minute)
			w.put("k", fmt.Sprintf(`"schedules":[%q,%q],"past":"skip"`, w.after(time.Minute), w.after(3*time.Hour)))
			w.until(2 * time.Hour)
			return w.after(time.Minute)
		},
		codes: "skipped_as_past",
	},
	{
		name: "past when its job was replaced, and skipped",
		cause: func(w *world) string {
			w.put("k", w.at(5*time.Hour))
			w.until(10 * time.Minute)
			w.put("k", fmt.Sprintf(`"schedules":[%q,%q]`, w.after(time.Minute), w.after(3*time.Hour)))
			w.until(2 * time.Hour)
			return w.after(time.Minute)
		},
		codes: "skipped_as_past",
	},
	{
		name: "past when it was submitted, and delivered at once",
		cause: func(w *world) string {
			w.replica()
			w.until(10 * time.Minute)
			w.put("k", w.at(time.Minute)+`,"past":"fire"`)
			w.until(15 * time.Minute)
			return w.after(time.Minute)
		},
		codes: "delivered",
	},
	{
		name: "nothing is left to fire",
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(time.Minute))
			w.until(10 * time.Minute)
			return "next"
		},
		codes: "finished delivered",
	},
	{
		name: "no instant has come yet",
		cause: func(w *world) string {
			w.put("k", w.at(time.Hour))
			return "last"
		},
		codes: "no_such_instant",
	},
	{
		name:  "no such job",
		cause: func(*world) string { return "next" },
		codes: "unknown",
	},
	{
		name: "no such job, without history",
		keep: keeps{nothing: true},
		cause: func(w *world) string {
			return w.after(time.Hour)
		},
		codes: "unknown not_kept",
	},
	{
		name: "the job had finished, and its retention is over",
		keep: keeps{briefly: true},
		cause: func(w *world) string {
			w.replica()
			w.put("k", w.at(time.Minute))
			w.until(30 * time.Minute)
			w.do("PATCH", "/v1/jobs/k", `{"retry":{"maxAttempts":7}}`)
			w.until(80 * time.Minute)
			return w.after(25 * time.Minute)
		},
		codes: "finished",
	},
	{
		name: "delivered before history begins",
		keep: keeps{briefly: true},
		cause: func(w *world) string {
			w.replica()
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(131 * time.Minute)
			return w.after(10 * time.Minute)
		},
		codes: "delivered not_kept",
	},
	{
		name: "settled before history begins, of a job that has failed",
		keep: keeps{briefly: true},
		cause: func(w *world) string {
			w.replica()
			w.answers(func(_ context.Context, d callbacks.Delivery) error {
				if d.Timestamp.Hour() == 1 {
					return callbacks.Refused(refusal(410))
				}
				return nil
			})
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(131 * time.Minute)
			return w.after(10 * time.Minute)
		},
		codes: "not_kept",
	},
	{
		name: "delivered, where history leaves out deliveries",
		keep: keeps{failures: true},
		cause: func(w *world) string {
			w.replica()
			w.answers(func(_ context.Context, d callbacks.Delivery) error {
				if d.Timestamp.Minute() == 10 {
					return callbacks.Refused(refusal(410))
				}
				return nil
			})
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(31 * time.Minute)
			return w.after(20 * time.Minute)
		},
		codes: "delivered",
	},
	{
		name: "delivered on the second attempt, where history leaves out deliveries",
		keep: keeps{failures: true},
		cause: func(w *world) string {
			w.replica()
			w.refuses(503, time.Minute)
			w.put("k", w.at(time.Second))
			w.until(30 * time.Second)
			w.answers(nil)
			w.until(5 * time.Minute)
			return w.after(time.Second)
		},
		codes: "delivered retrying",
	},
	{
		name: "just delivered on the second attempt, and not in history yet",
		cause: func(w *world) string {
			w.replica()
			w.refuses(503, time.Minute)
			w.put("k", w.at(time.Second))
			w.until(30 * time.Second)
			w.answers(nil)
			w.until(61*time.Second + 10*time.Millisecond)
			return w.after(time.Second)
		},
		codes: "unknown retrying",
	},
	{
		name: "just delivered, and not in history yet",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(_ context.Context, d callbacks.Delivery) error {
				if d.Timestamp.Minute() == 10 {
					return callbacks.Refused(refusal(410))
				}
				return nil
			})
			w.put("k", `"crontab":"*/10 * * * *"`)
			w.until(20*time.Minute + 10*time.Millisecond)
			return w.after(20 * time.Minute)
		},
		codes: "unknown",
	},
	{
		name: "some subscribers of a sequence were reached",
		cause: func(w *world) string {
			w.replica()
			w.answers(func(_ context.Context, d callbacks.Delivery) error {
				if d.Part.Subscriber == "c" {
					return callbacks.Refused(refusal(410))
				}
				return nil
			})
			w.put("k", fmt.Sprintf(`"startAt":%q,"steps":[{"type":"job"},{"type":"wait_certain_period","delay_period":1,"delay_unit":"hours"},{"type":"job"}],"subscribers":["a","b","c"]`, w.after(time.Minute)))
			w.until(30 * time.Minute)
			return w.after(time.Minute)
		},
		codes: "dead delivered",
	},
	{
		name: "the subscribers of a sequence wait",
		cause: func(w *world) string {
			w.put("k", fmt.Sprintf(`"startAt":%q,"steps":[{"type":"job"}],"subscribers":["a","b","c"]`, w.after(time.Minute)))
			return "next"
		},
		codes: "waiting",
	},
}

var update = flag.Bool("update", false, "write the answers of the situations to testdata")

// chance matches the random parts of an answer about retried deliveries: times, and numbers of failures.
var chance = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|\d+ (ms|s|min|h)( \d+ (ms|s|min))?|\d+ (times|failures) in a row`)

// TestSituations makes each situation happen, through the API and with a dispatcher on a virtual clock, and compares
// its explanation with the file of all answers, which is for readers too.
func TestSituations(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	path := filepath.Join("testdata", "answers.txt")
	wanted := make(map[string]string)
	if read, err := os.ReadFile(path); err == nil {
		for part := range strings.SplitSeq(string(read), "\n## ") {
			name, text, _ := strings.Cut(part, "\n")
			wanted[strings.TrimPrefix(name, "## ")] = strings.TrimSpace(text)
		}
	}
	var all strings.Builder
	names := make(map[string]bool)
	for _, s := range situations {
		if names[s.name] {
			t.Errorf("%q is there twice", s.name)
		}
		names[s.name] = true
		t.Run(s.name, func(t *testing.T) {
			bubble(t, s.keep, func(w *world) {
				at := s.cause(w)
				got := w.explain("k", at)
				if got.codes() != s.codes || got.Code != strings.Fields(s.codes)[0] {
					t.Errorf("codes are %q, %s; want %q:\n%s", got.codes(), got.Code, s.codes, got.text())
				}
				text := strings.TrimSpace(got.text())
				if s.random {
					text = chance.ReplaceAllString(text, "…")
				}
				fmt.Fprintf(&all, "## %s\n%s\n\n", s.name, text)
				if !*update && text != wanted[s.name] {
					t.Errorf("told\n%s\nwant\n%s", text, wanted[s.name])
				}
			})
		})
	}
	if *update {
		if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
