package job_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"
)

// names returns the subscribers' names, as the occurrences of one job step have them.
func names(occurrences []job.Occurrence) []string {
	var all []string
	for _, o := range occurrences {
		all = append(all, o.Part.Subscriber)
	}
	return all
}

func TestSubscriberNames(t *testing.T) {
	longest := strings.Repeat("é", 512)
	for _, test := range []struct {
		name, subscribers string
		want              []string
	}{
		{"none", "", []string{""}},
		{"null", "null", []string{""}},
		{"one", "1", []string{"1"}},
		{"a count", "3", []string{"1", "2", "3"}},
		{"ids", `["b","a"," ","1/2","é😀"]`, []string{"b", "a", " ", "1/2", "é😀"}},
		{"escaped ids", `["\u0041\/\u00e9\"\\"]`, []string{`A/é"\`}},
		{"numbers", `[7, -1.50, 1e3, 12345678901234567890]`, []string{"7", "-1.50", "1e3", "12345678901234567890"}},
		{"objects", `[{}, { "id" : 7, "tags" : [ "a b", null ] }, {"b":1,"a":2}, {"a":2,"b":1}]`,
			[]string{`{}`, `{"id":7,"tags":["a b",null]}`, `{"b":1,"a":2}`, `{"a":2,"b":1}`}},
		{"escapes in objects", `[{"\u0061":"\u00e9\/\u0041\n\t\u0001\u2028"}]`, []string{"{\"a\":\"é/A\\n\\t\\u0001\u2028\"}"}},
		{"all sorts", `["x",1,{"x":1}]`, []string{"x", "1", `{"x":1}`}},
		{"the longest", `["` + longest + `"]`, []string{longest}},
	} {
		members := `"steps":[{"type":"job"}]`
		if test.subscribers != "" {
			members += `,"subscribers":` + test.subscribers
		}
		j, b := begun(t, body(members), start)
		if got := names(b.Occurrences); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		// The names are part of the delivery ids, so they must be the same when the job is read back.
		j.Schedule = restored(t, j.Schedule)
		again, err := j.Begin(start, job.PastFire, expansion)
		if got := names(again.Occurrences); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: from the store %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

func TestSubscribersThatAreRefused(t *testing.T) {
	for _, test := range []struct{ subscribers, want string }{
		{`0`, `/subscribers: must be a whole number of at least 1, or a list of ids or objects`},
		{`-1`, `/subscribers: must be a whole number`},
		{`1.5`, `/subscribers: must be a whole number`},
		{`-99999999999999999999`, `/subscribers: must be a whole number`},
		{`"20"`, `/subscribers: must be a whole number`},
		{`true`, `/subscribers: must be a whole number`},
		{`{"count":20}`, `/subscribers: must be a whole number`},
		{`[]`, `/subscribers: must not be empty`},
		{`[""]`, `/subscribers/0: must be 1 to 1024 bytes`},
		{`["a","` + strings.Repeat("é", 513) + `"]`, `/subscribers/1: must be 1 to 1024 bytes`},
		{`[{"a":"` + strings.Repeat("x", 1017) + `"}]`, `/subscribers/0: must be 1 to 1024 bytes`},
		{`["a\u0000"]`, `/subscribers/0: must have no control characters`},
		{`["\u0085"]`, `/subscribers/0: must have no control characters`},
		{`[{"a":"\u007f"}]`, `/subscribers/0: must have no control characters`},
		{`["a",null,true,["b"]]`, `/subscribers/1: must be a text, a number or an object; /subscribers/2: must be a text, a number or an object; ` +
			`/subscribers/3: must be a text, a number or an object`},
		{`["a","b","a"]`, `/subscribers/2: is the same as /subscribers/0; each subscriber may be listed once`},
		{`["1",1]`, `/subscribers/1: is the same as /subscribers/0`},
		{`["A","\u0041"]`, `/subscribers/1: is the same as /subscribers/0`},
		{`[{"a":1},{ "a" : 1 }]`, `/subscribers/1: is the same as /subscribers/0`},
		{`[{"a":"A"},{"a":"\u0041"}]`, `/subscribers/1: is the same as /subscribers/0`},
		{`[{"a":1,"a":2}]`, `/subscribers/0/a: is given twice`},
		{`4`, `/subscribers: names 4 subscribers, for 3 job steps; at most 10 instants are allowed, counted for each subscriber (--max-instants)`},
		{`["a","b","c","d"]`, `/subscribers: names 4 subscribers, for 3 job steps`},
		{`9223372036854775807`, `/subscribers: names 9223372036854775807 subscribers`},
		{`99999999999999999999`, `/subscribers: names 9223372036854775807 subscribers`},
	} {
		d, err := job.Decode([]byte(body(`"steps":[{"type":"job"},{"type":"job"},{"type":"job"}],"subscribers":` + test.subscribers)))
		if err == nil {
			_, err = d.Job("t", job.Limits{Instants: 10, Payload: 1000})
		}
		if err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%.60s: %v, want %s", test.subscribers, err, test.want)
		}
	}
	d, err := job.Decode([]byte(body(`"steps":[{"type":"job"},{"type":"job"},{"type":"job"}],"subscribers":3`)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Job("t", job.Limits{Instants: 9, Payload: 1000}); err != nil {
		t.Errorf("as many as are allowed: %v", err)
	}
}

// The subscriber and the instant make a delivery's id. A resubmission, another order of the subscribers, or new
// subscribers do not change it.
func TestDeliveryIDsOfSubscribersAreStable(t *testing.T) {
	ids := func(subscribers string) map[string]job.ID {
		all := make(map[string]job.ID)
		_, b := begun(t, body(steps+`,"startAt":"2030-01-01T12:00:00Z","subscribers":`+subscribers), start)
		seen := make(map[job.ID]bool)
		for _, o := range b.Occurrences {
			id := o.DeliveryID()
			all[fmt.Sprint(o.Part.Step, o.Part.Subscriber)] = id
			if seen[id] || seen[o.ID] || id == o.ID {
				t.Errorf("%s: %+v shares an id", subscribers, o)
			}
			seen[id], seen[o.ID] = true, true
		}
		return all
	}
	compare := func(before, after string) {
		was, is := ids(before), ids(after)
		for of, id := range was {
			if is[of] != id {
				t.Errorf("from %s to %s, %s changes its id from %s to %s", before, after, of, id, is[of])
			}
		}
	}
	compare(`["a",2,{"id": 3}]`, `["a",2,{"id": 3}]`)
	compare(`["a",2,{"id": 3}]`, `[{"id":3},"new","a","2","1"]`)
	compare(`3`, `5`)
	compare(`["1","2"]`, `2`)
}

func TestSubscribersAreNotTheRequestsBytes(t *testing.T) {
	bytes := []byte(body(steps + `,"subscribers":["a",{"id":1}]`))
	d, err := job.Decode(bytes)
	if err != nil {
		t.Fatal(err)
	}
	for i := range bytes {
		bytes[i] = 'x'
	}
	j, err := d.Job("t", generous)
	if err != nil {
		t.Fatal(err)
	}
	b, err := j.Begin(start, job.PastFire, expansion)
	if err != nil || b.Occurrences[1].Part.Subscriber != `{"id":1}` || string(b.Occurrences[2].Payload(j.Options)) != `{"a": [1.0, null, "\u00e9"]}` {
		t.Errorf("%s %+v, %v", j.Schedule.Encode(), j.Options, err)
	}
}

// Listing very many subscribers, and beginning their job, takes time in proportion to their number.
func BenchmarkSubscribers(b *testing.B) {
	var objects strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&objects, `,{"id":%d,"mail":"someone-%d@example.com"}`, i, i)
	}
	for name, subscribers := range map[string]string{"10000 objects": "[" + objects.String()[1:] + "]", "count of 100000": "100000"} {
		text := body(`"steps":[{"type":"job"}],"subscribers":` + subscribers)
		b.Run("submit "+name, func(b *testing.B) {
			for b.Loop() {
				parsed(b, text)
			}
		})
		b.Run("begin "+name, func(b *testing.B) {
			for b.Loop() {
				j := parsed(b, text)
				if _, err := j.Begin(start, job.PastFire, expansion); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
