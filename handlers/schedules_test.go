package handlers_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSchedulesThatAreRefused sends each as a job, in a batch and as a preview: every answer names the field and the
// valid form.
func TestSchedulesThatAreRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	steps := func(steps ...any) string { return sequence("a", steps) }
	step := func(members ...any) any {
		m := map[string]any{}
		for i := 0; i < len(members); i += 2 {
			m[members[i].(string)] = members[i+1]
		}
		return m
	}
	weekday := func(days ...any) any { return step("type", "wait_weekday", "weekdays", slices.Concat([]any{}, days)) }
	to := func(subscribers any) string { return sequence("a", []any{fire()}, "subscribers", subscribers) }
	a := newAPI(t)
	for name, test := range map[string]struct {
		body    string
		named   []string
		message string // a part of the first field's
	}{
		"schedules and crontab": {with(body("a", time.Hour), "crontab", "@daily"),
			[]string{"/crontab"}, "must not be given beside schedules: a job has exactly one of"},
		"crontab and steps":   {recurring("a", "@daily", "steps", []any{fire()}), []string{"/steps"}, "beside crontab"},
		"delay and schedules": {with(body("a", time.Hour), "delay", "1h"), []string{"/delay"}, "beside schedules"},
		"all four": {with(body("a", time.Hour), "delay", "1h", "crontab", "@daily", "steps", []any{fire()}),
			[]string{"/delay", "/crontab", "/steps"}, "beside schedules"},
		"none":                    {with(body("a"), "schedules", nil), []string{"/schedules"}, "unless delay, crontab or steps"},
		"negative delay":          {with(body("a"), "schedules", nil, "delay", "-5m"), []string{"/delay"}, `must not be negative`},
		"long delay":              {with(body("a"), "schedules", nil, "delay", "5201w"), []string{"/delay"}, "must be at most 5200w"},
		"unknown zone":            {recurring("a", "@daily", "timezone", "Europe/Atlantis"), []string{"/timezone"}, "must be an IANA name, spelled as"},
		"local zone":              {recurring("a", "@daily", "timezone", "Local"), []string{"/timezone"}, "IANA"},
		"empty zone":              {recurring("a", "@daily", "timezone", ""), []string{"/timezone"}, "IANA"},
		"zone of instants":        {with(body("a", time.Hour), "timezone", "UTC"), []string{"/timezone"}, "belongs to a crontab or steps"},
		"Feb 30":                  {recurring("a", "0 0 30 2 *"), []string{"/crontab"}, "never"},
		"not a crontab":           {recurring("a", "every day"), []string{"/crontab"}, "fields"},
		"four fields":             {recurring("a", "* * * *"), []string{"/crontab"}, "five"},
		"empty crontab":           {recurring("a", ""), []string{"/crontab"}, "is empty"},
		"crontab of wrong type":   {recurring("a", "x", "crontab", 5), []string{"/crontab"}, "must be a string"},
		"every half second":       {recurring("a", "@every 500ms"), []string{"/crontab"}, "at least 1s"},
		"endAt before startAt":    {recurring("a", "@daily", "startAt", at(2*time.Hour), "endAt", at(time.Hour)), []string{"/endAt"}, "must not lie before startAt"},
		"endAt before first tick": {recurring("a", "@daily", "endAt", at(time.Hour)), []string{"/endAt"}, "2030-01-02T00:00:00.000Z"},
		"endAt in the past":       {recurring("a", "@every 1s", "endAt", at(-time.Hour)), []string{"/endAt"}, "first instant"},
		"startAt no instant":      {recurring("a", "@daily", "startAt", "tomorrow"), []string{"/startAt"}, "RFC 3339"},
		"endAt of steps":          {sequence("a", []any{fire()}, "endAt", at(time.Hour)), []string{"/endAt"}, "belongs to a crontab"},
		"startAt of instants":     {with(body("a", time.Hour), "startAt", at(0)), []string{"/startAt"}, "belongs to a crontab or steps"},
		"past of a crontab":       {recurring("a", "@daily", "past", "fire"), []string{"/past"}, "leave it out"},
		"at, past and rejected":   {recurring("a", "@at 1893495600", "past", "reject"), []string{"/crontab"}, "in the past"},
		"at before startAt":       {recurring("a", "@at 1893495600", "startAt", at(0)), []string{"/startAt"}, "never fires"},
		"catchUp of schedules":    {with(body("a", time.Hour), "catchUp", "all"), []string{"/catchUp"}, "belongs to a crontab"},
		"catchUp of at":           {recurring("a", "@at 1893510000", "catchUp", "all"), []string{"/catchUp"}, "recurs"},
		"unknown catchUp":         {recurring("a", "@daily", "catchUp", "some"), []string{"/catchUp"}, "latest, all, none"},
		"deadline x":              {recurring("a", "@daily", "deadline", "x"), []string{"/deadline"}, "must be a duration such as"},
		"no deadline":             {recurring("a", "@daily", "deadline", "0s"), []string{"/deadline"}, "from 1ms"},
		"deadline a number":       {recurring("a", "@daily", "deadline", 5), []string{"/deadline"}, "duration in a string"},
		"no job step":             {steps(wait(1, "minute")), []string{"/steps"}, `at least one step of type "job"`},
		"no steps":                {steps([]any{}...), []string{"/steps"}, `"job"`},
		"unknown step type":       {steps(fire(), step("type", "wait")), []string{"/steps/1/type"}, "wait_certain_period, wait_weekday, wait_specific_date, job"},
		"no step type":            {steps(fire(), step()), []string{"/steps/1/type"}, "is required"},
		"unknown unit":            {steps(wait(1, "month"), fire()), []string{"/steps/0/delay_unit"}, "second, minute, hour, day, week"},
		"no unit and no period":   {steps(step("type", "wait_certain_period"), fire()), []string{"/steps/0/delay_unit", "/steps/0/delay_period"}, "is required"},
		"negative period":         {steps(wait(-1, "minute"), fire()), []string{"/steps/0/delay_period"}, "must not be negative"},
		"period a text": {steps(step("type", "wait_certain_period", "delay_period", "1", "delay_unit", "day"), fire()),
			[]string{"/steps/0/delay_period"}, "must be a number"},
		"long period":     {steps(wait(101, "year"), wait(6000, "weeks"), fire()), []string{"/steps/0/delay_unit", "/steps/1/delay_period"}, "week"},
		"weekday names":   {steps(weekday("monday", "moonday", 5), fire()), []string{"/steps/0/weekdays/2"}, "must be a string"},
		"weekday name":    {steps(weekday("monday", "moonday"), fire()), []string{"/steps/0/weekdays/1"}, "monday, tuesday, wednesday"},
		"no weekdays":     {steps(weekday(), fire()), []string{"/steps/0/weekdays"}, "at least one day"},
		"date no instant": {steps(step("type", "wait_specific_date", "date", "2030-01-01"), fire()), []string{"/steps/0/date"}, "RFC 3339"},
		"no date":         {steps(step("type", "wait_specific_date"), fire()), []string{"/steps/0/date"}, "is required"},
		"foreign field":   {steps(step("type", "job", "date", at(0))), []string{"/steps/0/date"}, "does not belong to a step of type job, which has metadata"},
		"unknown field":   {steps(step("type", "job", "payload", 1)), []string{"/steps/0/payload"}, "is not a known field"},
		"steps an object": {sequence("a", nil, "steps", step("type", "job")), []string{"/steps"}, "must be an array"},
		"a step a text":   {steps("job", fire()), []string{"/steps/0"}, "must be an object"},
		"beyond all years": {sequence("a", []any{step("type", "wait_specific_date", "date", "9999-12-31T00:00:00Z"), wait(1, "week"), fire()}),
			[]string{"/steps/1"}, "9999"},
		"too many instants":        {sequence("a", []any{fire(), fire()}, "subscribers", 6), []string{"/subscribers"}, "at most 10"},
		"too many job steps":       {steps(slices.Repeat([]any{fire()}, 11)...), []string{"/steps"}, "--max-instants"},
		"large metadata":           {steps(fire(strings.Repeat("x", 1200)), fire(strings.Repeat("x", 1200))), []string{"/steps"}, "--max-payload"},
		"step in the past":         {sequence("a", []any{fire()}, "startAt", at(-time.Hour), "past", "reject"), []string{"/steps/0"}, "in the past"},
		"type without steps":       {with(body("a", time.Hour), "type", "sequence"), []string{"/type"}, "belongs to steps"},
		"unknown type":             {sequence("a", []any{fire()}, "type", "campaign"), []string{"/type"}, "sequence"},
		"no subscribers":           {to(0), []string{"/subscribers"}, "at least 1"},
		"empty subscribers":        {to([]any{}), []string{"/subscribers"}, "must not be empty"},
		"half a subscriber":        {to(1.5), []string{"/subscribers"}, "whole number"},
		"subscribers a text":       {to("all"), []string{"/subscribers"}, "whole number"},
		"same subscriber":          {to([]any{"x", "y", "x"}), []string{"/subscribers/2"}, "is the same as /subscribers/0"},
		"same object":              {to([]any{step("id", 1), step("id", 1)}), []string{"/subscribers/1"}, "/subscribers/0"},
		"nested subscribers":       {to([]any{"x", []any{"y"}}), []string{"/subscribers/1"}, "a text, a number or an object"},
		"null among subscribers":   {to([]any{"x", nil}), []string{"/subscribers/1"}, "a text, a number or an object"},
		"control in a subscriber":  {to([]any{"x\n"}), []string{"/subscribers/0"}, "control characters"},
		"subscribers of a crontab": {recurring("a", "@daily", "subscribers", 2), []string{"/subscribers"}, "belongs to steps"},
		"several at once": {sequence("a", []any{wait(-1, "eon"), fire()}, "timezone", "x", "deadline", "1ns", "catchUp", "all"),
			[]string{"/deadline", "/catchUp", "/timezone", "/steps/0/delay_unit", "/steps/0/delay_period"}, "from 1ms"},
	} {
		t.Run(name, func(t *testing.T) {
			for how, p := range map[string]problem{
				"post":    a.call("POST", "/v1/jobs", test.body).want(422).problem(),
				"put":     a.call("PUT", "/v1/jobs/a", test.body).want(422).problem(),
				"batch":   decode[problem](a.call("POST", "/v1/jobs/batch", test.body, "Content-Type: "+asLines).want(200)),
				"preview": a.call("POST", "/v1/preview", test.body).want(422).problem(),
			} {
				if p.Status != 422 || !slices.Equal(p.named(), test.named) || !strings.Contains(p.Errors[0].Message, test.message) {
					t.Errorf("%s: %+v, want %q, %q", how, p, test.named, test.message)
				}
			}
			if puts := a.store.takePuts(); len(puts) > 0 {
				t.Errorf("%d were put", len(puts))
			}
		})
	}
}
