package job_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"
)

// For each error in a job's schedule, the answer names the fields and a correct form.
func TestSchedulesThatAreRefused(t *testing.T) {
	const at = `"schedules":["2030-01-01T12:00:00Z"]`
	wait := func(period, unit string) string {
		return `"steps":[{"type":"job"},{"type":"wait_certain_period","delay_period":` + period + `,"delay_unit":` + unit + `}]`
	}
	for _, test := range []struct {
		name, members string
		wrong         []string // pointers, and of some of them the message
	}{
		{"no kind", `"deadline":"1h"`, []string{"/schedules: is required, unless delay, crontab or steps is given instead"}},
		{"a type, but no steps", `"type":"sequence"`, []string{"/steps: is required, as type is sequence"}},
		{"schedules and a crontab", at + `,"crontab":"@daily"`,
			[]string{"/crontab: must not be given beside schedules: a job has exactly one of schedules, delay, crontab and steps"}},
		{"all kinds", at + `,"crontab":"@daily","delay":"1s","steps":[{"type":"job"}]`, []string{"/delay: must not be given beside schedules", "/crontab: must not", "/steps: must not"}},
		{"a delay and steps", `"steps":[{"type":"job"}],"delay":"1s"`, []string{"/steps: must not be given beside delay"}},
		{"no instants", `"schedules":[]`, []string{"/schedules: must not be empty"}},
		{"no instants, and a delay", `"schedules":[],"delay":"1s"`, []string{"/delay: must not be given beside schedules", "/schedules: must not be empty"}},

		{"of a crontab, beside instants", at + `,"timezone":"Europe/Paris","startAt":"2030-01-01T00:00:00Z","endAt":"2031-01-01T00:00:00Z","catchUp":"all"`,
			[]string{"/timezone: belongs to a crontab or steps; instants have an offset", "/startAt: belongs to a crontab or steps", "/endAt: belongs to a crontab", "/catchUp: belongs to a crontab; deadline"}},
		{"of steps, beside a delay", `"delay":"1s","type":"sequence","subscribers":1`, []string{"/type: belongs to steps", "/subscribers: belongs to steps"}},
		{"of steps, beside a crontab", `"crontab":"@daily","subscribers":["a"],"type":"sequence"`, []string{"/type: belongs to steps", "/subscribers: belongs to steps"}},
		{"of a crontab, beside steps", `"steps":[{"type":"job"}],"endAt":"2031-01-01T00:00:00Z","catchUp":"none"`, []string{"/endAt: belongs to a crontab", "/catchUp: belongs to a crontab"}},
		{"another type", `"steps":[{"type":"job"}],"type":"chain"`, []string{`/type: must be "sequence", or left out`}},

		{"no duration", `"delay":"soon"`, []string{`/delay: must be a duration such as`}},
		{"a number", `"delay":60`, []string{`/delay: must be a duration in a string, such as "30s"`}},
		{"a negative delay", `"delay":"-1s"`, []string{`/delay: must not be negative; "-1s" is`}},
		{"no duration", `"delay":"later"`, []string{`/delay: must be a duration such as`}},
		{"too long a delay", `"delay":"5201w"`, []string{`/delay: must be at most 5200w, a hundred years, not "5201w"`}},
		{"30 February", `"schedules":["2030-02-30T09:00:00Z"]`, []string{`/schedules/0: "2030-02-30T09:00:00Z" must be a day that there is: February 2030 has the days 01 to 28`}},
		{"no deadline", `"delay":"1s","deadline":"0s"`, []string{"/deadline: must be a duration from 1ms to 5200w"}},
		{"another catch-up", `"crontab":"@daily","catchUp":"some"`, []string{`/catchUp: must be one of latest, all, none, or left out, not "some"`}},

		{"the 30th of February", `"crontab":"0 0 30 2 *"`, []string{`/crontab: never fires: month "2" has no day of month "30"`}},
		{"four fields", `"crontab":"0 0 1 *"`, []string{"/crontab: has 4 fields; must have five"}},
		{"an empty crontab", `"crontab":""`, []string{"/crontab: is empty; must be a crontab such as"}},
		{"a bad field", `"crontab":"60 * * * *"`, []string{`/crontab: minute "60" must be`}},
		{"a crontab that is a number", `"crontab":5`, []string{"/crontab: must be a string"}},
		{"too often", `"crontab":"@every 10ms"`, []string{"/crontab: @every must be at least 1s"}},
		{"an unknown zone", `"crontab":"@daily","timezone":"Europe/Atlantis"`, []string{`/timezone: "Europe/Atlantis" is not a time zone; must be an IANA name, spelled as in Europe/Paris`}},
		{"no zone", `"crontab":"@daily","timezone":""`, []string{"/timezone"}},
		{"this machine's zone", `"steps":[{"type":"job"}],"timezone":"Local"`, []string{"/timezone"}},
		{"an end before the start", `"crontab":"@daily","startAt":"2030-01-02T00:00:00Z","endAt":"2030-01-01T23:59:59.999Z"`, []string{"/endAt: must not lie before startAt"}},
		{"a start without an offset", `"crontab":"@daily","startAt":"2030-01-02T00:00:00","endAt":"tomorrow"`, []string{`/startAt: "2030-01-02T00:00:00" must be an RFC 3339 instant`, `/endAt: "tomorrow" must be`}},
		{"all of it", `"crontab":"61 * * * *","timezone":"X","startAt":"x","deadline":"0s"`, []string{"/startAt", "/deadline", "/timezone", "/crontab"}},
		{"past of a crontab", `"crontab":"@daily","past":"skip"`, []string{"/past: does not apply to a crontab"}},
		{"@at before its start", `"crontab":"@at 1893499200","startAt":"2030-01-01T12:00:00.001Z"`, []string{"/startAt: lies after the crontab's one instant"}},
		{"@at after its end", `"crontab":"@at 1893499200","endAt":"2030-01-01T11:59:59.999Z"`, []string{"/endAt: lies before the crontab's one instant"}},
		{"@at, caught up", `"crontab":"@at 1893499200","catchUp":"all"`, []string{"/catchUp: belongs to a crontab that recurs"}},

		{"no steps", `"steps":[]`, []string{`/steps: must have at least one step of type "job": without one nothing fires`}},
		{"no job steps", `"steps":[{"type":"wait_weekday","weekdays":["monday"]}]`, []string{`/steps: must have at least one step of type "job"`}},
		{"no job steps for many", `"steps":[{"type":"wait_weekday","weekdays":["monday"]}],"subscribers":3`, []string{"/steps: must have at least one"}},
		{"steps that are none", `"steps":["job"]`, []string{"/steps/0: must be an object"}},
		{"an unknown type", `"steps":[{"type":"job"},{"type":"wait"}]`, []string{`/steps/1/type: must be one of wait_certain_period, wait_weekday, wait_specific_date, job, not "wait"`}},
		{"no type", `"steps":[{"type":"job"},{"weekdays":["monday"]}]`, []string{"/steps/1/type: is required: one of wait_certain_period"}},
		{"an unknown field", `"steps":[{"type":"job","payload":1}]`, []string{"/steps/0/payload: is not a known field; the fields here are type, delay_period, delay_unit, weekdays, date, metadata"}},
		{"an unknown unit", wait(`1`, `"month"`), []string{`/steps/1/delay_unit: must be one of second, minute, hour, day, week, not "month"`}},
		{"a negative period", wait(`-0.001`, `"minute"`), []string{"/steps/1/delay_period: must not be negative"}},
		{"a period in words", wait(`"1"`, `"minute"`), []string{"/steps/1/delay_period: must be a number"}},
		{"too long a period", wait(`36600.1`, `"day"`), []string{"/steps/1/delay_period: must be at most 100 years"}},
		{"far too long a period", wait(`1e308`, `"weeks"`), []string{"/steps/1/delay_period: must be at most 100 years"}},
		{"no number at all", wait(`1e999`, `"weeks"`), []string{"/steps/1/delay_period"}},
		{"both wrong", wait(`-1`, `""`), []string{`/steps/1/delay_unit: must be one of second, minute, hour, day, week, not ""`, "/steps/1/delay_period: must not be negative"}},
		{"no period", `"steps":[{"type":"job"},{"type":"wait_certain_period"}]`, []string{"/steps/1/delay_unit: is required", "/steps/1/delay_period: is required"}},
		{"no weekdays", `"steps":[{"type":"job"},{"type":"wait_weekday"},{"type":"wait_weekday","weekdays":[]}]`,
			[]string{`/steps/1/weekdays: is required: at least one day, as in ["monday", "friday"]`, "/steps/2/weekdays: is required"}},
		{"unknown weekdays", `"steps":[{"type":"job"},{"type":"wait_weekday","weekdays":["mon","lundi","1",""]}]`,
			[]string{`/steps/1/weekdays/1: must be monday, tuesday, wednesday, thursday, friday, saturday or sunday, not "lundi"`, "/steps/1/weekdays/2", "/steps/1/weekdays/3"}},
		{"one weekday", `"steps":[{"type":"job"},{"type":"wait_weekday","weekdays":"monday"}]`, []string{"/steps/1/weekdays: must be an array"}},
		{"no date", `"steps":[{"type":"job"},{"type":"wait_specific_date"}]`, []string{"/steps/1/date: is required"}},
		{"a bad date", `"steps":[{"type":"job"},{"type":"wait_specific_date","date":"2023-12-29"}]`, []string{`/steps/1/date: "2023-12-29" must be an RFC 3339 instant`}},
		{"an empty date", `"steps":[{"type":"job"},{"type":"wait_specific_date","date":""}]`, []string{`/steps/1/date: "" must be an RFC 3339 instant`}},
		{"a date before 1970", `"steps":[{"type":"job"},{"type":"wait_specific_date","date":"1969-12-31T23:59:59Z"}]`, []string{"/steps/1/date"}},
		{"empty texts of other steps", `"steps":[{"type":"job","delay_unit":"","date":""}]`, []string{"/steps/0/delay_unit: does not belong", "/steps/0/date: does not belong"}},
		{"what is another step's", `"steps":[{"type":"job","date":"2030-01-01T12:00:00Z"},{"type":"wait_specific_date","date":"2030-01-01T12:00:00Z","metadata":null,"weekdays":[]}]`,
			[]string{"/steps/0/date: does not belong to a step of type job, which has metadata", "/steps/1/weekdays: does not belong", "/steps/1/metadata: does not belong to a step of type wait_specific_date, which has date"}},
		{"too many steps", `"steps":[` + strings.Repeat(`{"type":"job"},`, 10) + `{"type":"job"}]`, []string{"/steps: has 11 job steps; at most 10 are allowed (--max-instants)"}},
		{"too much metadata", `"steps":[{"type":"job","metadata":"` + strings.Repeat("x", 50) + `"},{"type":"job","metadata":"` + strings.Repeat("x", 50) + `"}]`,
			[]string{"/steps: have 104 bytes of metadata; at most 100 are allowed (--max-payload)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := job.Decode([]byte(body(test.members)))
			if err == nil {
				_, err = d.Job("t", job.Limits{Instants: 10, Payload: 100})
			}
			var want, said []string
			for _, w := range test.wrong {
				pointer, message, _ := strings.Cut(w, ": ")
				want, said = append(want, pointer), append(said, message)
			}
			if err == nil || !slices.Equal(strings.Fields(pointers(err)), want) {
				t.Fatalf("%v, want %q", err, want)
			}
			for i, message := range strings.Split(err.Error(), "; /") {
				if _, message, _ = strings.Cut(message, ": "); !strings.HasPrefix(message, said[i]) {
					t.Errorf("%s: %s, want %s", want[i], message, said[i])
				}
			}
		})
	}
}

// Just within all limits.
func TestSchedulesThatAreAccepted(t *testing.T) {
	for _, members := range []string{
		`"delay":"5200w","deadline":"1ms"`, `"delay":"0s","deadline":"5200w","past":"reject"`, `"schedules":null,"delay":"1s","crontab":null,"steps":null,"subscribers":null`,
		`"crontab":"@daily","startAt":"2030-01-01T00:00:00Z","endAt":"2030-01-01T00:00:00Z"`, `"crontab":"@at 0","past":"skip"`,
		`"steps":[` + strings.Repeat(`{"type":"job"},`, 9) + `{"type":"job"}]`, `"steps":[{"type":"job"}],"subscribers":10`,
		`"steps":[{"type":"job"},{"type":"wait_certain_period","delay_period":36600,"delay_unit":"days"}]`,
		`"steps":[{"type":"job","metadata":"` + strings.Repeat("x", 98) + `"}]`,
		`"steps":[{"type":"job"},{"type":"wait_weekday","weekdays":["mon","Mon","MONDAY"]}],"type":"sequence","past":"fire"`,
	} {
		d, err := job.Decode([]byte(body(members)))
		if err == nil {
			_, err = d.Job("t", job.Limits{Instants: 10, Payload: 100})
		}
		if err != nil {
			t.Errorf("%s: %v", members, err)
		}
	}
}
