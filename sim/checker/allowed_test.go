package checker

import (
	"slices"
	"testing"
	"time"
)

const (
	permissionsHold = "a key's permissions hold"
	onlyAllowed     = "only what is allowed is called"
)

// callersOf are some callers with their permissions.
var callersOf = map[string]Permissions{
	"viewer":    {Role: "viewer", Tenants: []string{"*"}},
	"submitter": {Role: "submitter", Tenants: []string{"*"}},
	"neighbour": {Role: "operator", Tenants: []string{"other"}},
	"prefixed":  {Role: "operator", Tenants: []string{"*"}, Prefix: "a/"},
	"admin":     {Role: "admin", Tenants: []string{"*"}},
}

// TestPermissions: what a key does not permit is refused in the way that the pages tell, and what it permits is not
// forbidden.
func TestPermissions(t *testing.T) {
	quota := Op{Kind: Quota, Tenant: "other", Jobs: 1, Invoked: at(1), Returned: at(1.1), Status: 200}
	for name, one := range map[string]struct {
		Op
		before []Op
		broken bool
	}{
		"a viewer puts a job":                       {Op: Op{Caller: "viewer", Kind: Put, Key: "k", Status: 201}, broken: true},
		"it is forbidden":                           {Op: Op{Caller: "viewer", Kind: Put, Key: "k", Status: 403}},
		"the job is told not to exist":              {Op: Op{Caller: "viewer", Kind: Amend, Key: "k", Status: 404}, broken: true},
		"the key is not valid any more":             {Op: Op{Caller: "viewer", Kind: Put, Key: "k", Status: 401}},
		"the store is away":                         {Op: Op{Caller: "viewer", Kind: Put, Key: "k", Status: 503}},
		"there is no answer":                        {Op: Op{Caller: "viewer", Kind: Put, Key: "k"}},
		"a viewer reads":                            {Op: Op{Caller: "viewer", Kind: Get, Key: "k", Status: 404}},
		"its reading is forbidden":                  {Op: Op{Caller: "viewer", Kind: Get, Key: "k", Status: 403}, broken: true},
		"a submitter puts a job":                    {Op: Op{Caller: "submitter", Kind: Put, Key: "k", Status: 201}},
		"a submitter pauses one":                    {Op: Op{Caller: "submitter", Kind: Pause, Key: "k", Status: 200}, broken: true},
		"a submitter redrives":                      {Op: Op{Caller: "submitter", Kind: Redrive, Key: "k", Status: 200}, broken: true},
		"a submitter deletes dead letters":          {Op: Op{Caller: "submitter", Kind: Discard, Key: "k", Status: 200}, broken: true},
		"it deletes no dead letters beyond it":      {Op: Op{Caller: "prefixed", Kind: Discard, Key: "k", Status: 200}},
		"it deletes one there":                      {Op: Op{Caller: "prefixed", Kind: Discard, Key: "k", Status: 200, Deleted: 1}, broken: true},
		"its putting is forbidden":                  {Op: Op{Caller: "submitter", Kind: Put, Key: "k", Status: 403}, broken: true},
		"its putting is forbidden by a quota":       {Op: Op{Caller: "submitter", Tenant: "other", Kind: Put, Key: "k", Status: 403}, before: []Op{quota}},
		"a quota forbids no reading":                {Op: Op{Caller: "submitter", Tenant: "other", Kind: Get, Key: "k", Status: 403}, before: []Op{quota}, broken: true},
		"nor is it that of another tenant":          {Op: Op{Caller: "submitter", Kind: Put, Key: "k", Status: 403}, before: []Op{quota}, broken: true},
		"an operator is forbidden something":        {Op: Op{Kind: Cancel, Key: "k", Status: 403}, broken: true},
		"a key reads another tenant's job":          {Op: Op{Caller: "neighbour", Kind: Get, Key: "k", Status: 200}, broken: true},
		"that is forbidden":                         {Op: Op{Caller: "neighbour", Kind: Get, Key: "k", Status: 403}},
		"a key cancels its own tenant's job":        {Op: Op{Caller: "neighbour", Tenant: "other", Kind: Cancel, Key: "k", Status: 200}},
		"a key pauses its own tenant":               {Op: Op{Caller: "neighbour", Tenant: "other", Kind: Settings, Status: 200}},
		"a key pauses another tenant":               {Op: Op{Caller: "neighbour", Tenant: "third", Kind: Settings, Status: 200}, broken: true},
		"only an admin sets a quota":                {Op: Op{Caller: "neighbour", Tenant: "other", Kind: Quota, Status: 200}, broken: true},
		"an admin sets one":                         {Op: Op{Caller: "admin", Tenant: "other", Kind: Quota, Status: 200}},
		"a key with a prefix reads a job beyond it": {Op: Op{Caller: "prefixed", Kind: Get, Key: "k", Status: 200}, broken: true},
		"there is none for it":                      {Op: Op{Caller: "prefixed", Kind: Get, Key: "k", Status: 404}},
		"it is not told that there is one":          {Op: Op{Caller: "prefixed", Kind: Get, Key: "k", Status: 403}, broken: true},
		"it cancels one":                            {Op: Op{Caller: "prefixed", Kind: Cancel, Key: "k", Status: 200}, broken: true},
		"it puts one":                               {Op: Op{Caller: "prefixed", Kind: Put, Key: "k", Status: 201}, broken: true},
		"its put is forbidden":                      {Op: Op{Caller: "prefixed", Kind: Put, Key: "k", Status: 403}},
		"it puts one within its prefix":             {Op: Op{Caller: "prefixed", Kind: Put, Key: "a/k", Status: 201}},
		"it redrives nothing":                       {Op: Op{Caller: "prefixed", Kind: Redrive, Key: "k", Status: 200}},
		"it redrives one":                           {Op: Op{Caller: "prefixed", Kind: Redrive, Key: "k", Status: 200, Redriven: 1}, broken: true},
		"it pauses a whole tenant":                  {Op: Op{Caller: "prefixed", Kind: Settings, Status: 200}, broken: true},
		"it lists its jobs":                         {Op: Op{Caller: "prefixed", Kind: List, Status: 200, Listed: []string{"a/k"}}},
		"it lists others":                           {Op: Op{Caller: "prefixed", Kind: List, Status: 200, Listed: []string{"a/k", "k"}}, broken: true},
		"a list has another tenant's job": {
			Op:     Op{Caller: "neighbour", Tenant: "other", Kind: List, Status: 200, Listed: []string{"k"}},
			before: []Op{{Kind: Get, Key: "k", Status: 404}}, broken: true,
		},
	} {
		o := one.Op
		o.Invoked, o.Returned, o.Unchanged = at(10), at(10.1), o.Status >= 400 && o.Status < 500
		h := history(append(one.before, o))
		h.Permissions = callersOf
		if got := slices.Contains(broken(h), permissionsHold); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestRefusedChangesNothing: a request that must be refused has no effect, whatever it is answered.
func TestRefusedChangesNothing(t *testing.T) {
	put := Op{Kind: Put, Key: "k", N: 1, Invoked: at(1), Returned: at(1.1), Status: 201}
	refused := Op{Kind: Put, Key: "k", N: 2, Invoked: at(10), Returned: at(10.1), Schedule: Schedule{Instants: []time.Time{at(30)}}}
	cancel := Op{Kind: Cancel, Key: "k", Invoked: at(10), Returned: at(10.1)}
	sent := attemptAt(30, 1, true)
	sent.N = 2
	for name, one := range map[string]struct {
		Op
		final  int
		sent   []Delivery
		broken []string
	}{
		"it has changed nothing":  {Op: refused, final: 1},
		"the job is replaced":     {Op: refused, final: 2, broken: []string{"no mixture", "one order of changes"}},
		"its payload is sent":     {Op: refused, final: 1, sent: []Delivery{sent}, broken: []string{"no mixture", "nothing fires unasked"}},
		"the job is not there":    {Op: cancel, broken: []string{"one order of changes"}},
		"the job is still there":  {Op: cancel, final: 1},
		"an operator replaces it": {Op: func() Op { o := refused; o.Caller = "admin"; return o }(), final: 2},
	} {
		for _, status := range []int{0, 403, 503} {
			o := one.Op
			if o.Status = status; o.Caller == "" {
				o.Caller = "viewer"
			} else if status == 403 {
				continue
			}
			h := history([]Op{put, o}, one.sent...)
			h.Permissions = callersOf
			if delete(h.Final.Jobs, "k"); one.final > 0 {
				h.Final.Jobs["k"] = Job{N: one.final}
			}
			if got := broken(h); !slices.Equal(got, one.broken) {
				t.Errorf("%s, status %d: broken are %q, want %q", name, status, got, one.broken)
			}
		}
	}
}

// TestOnlyAllowed: a job for a receiver that its tenant may not call is refused, and no such receiver is called. If only
// the sending tells that, the job may be accepted, and is buried unsent.
func TestOnlyAllowed(t *testing.T) {
	put := func(to, tenant string, status int) Op {
		return Op{
			Kind: Put, Key: "k", Tenant: tenant, N: 1, To: to, Invoked: at(1), Returned: at(1.1), Status: status,
			Unchanged: status == 422, Attempts: 2, Schedule: Schedule{Instants: []time.Time{at(30)}},
		}
	}
	sent := func(to, tenant string) *Delivery {
		d := attemptAt(30, 1, true)
		d.To, d.Tenant = to, tenant
		return &d
	}
	unseen := Recorded{Key: "k", DeliveryID: "x", Attempt: 1, Outcome: "buried", At: at(30)}
	retried := unseen
	retried.Outcome = "retried"
	for name, one := range map[string]struct {
		Op
		sent   *Delivery
		told   Recorded
		broken []string
	}{
		"its own receiver":               {Op: put("theirs", "other", 201), sent: sent("theirs", "other")},
		"it is refused":                  {Op: put("theirs", "", 422)},
		"it is accepted":                 {Op: put("theirs", "", 201), broken: []string{onlyAllowed}},
		"it is called":                   {Op: put("", "", 201), sent: sent("theirs", ""), broken: []string{onlyAllowed}},
		"what is allowed is refused":     {Op: put("theirs", "other", 422), broken: []string{onlyAllowed}},
		"nobody may call it":             {Op: put("closed", "other", 201), broken: []string{onlyAllowed}},
		"a name may be accepted":         {Op: put("name", "", 201), sent: sent("open", "")},
		"but its receiver is not called": {Op: put("name", "", 201), sent: sent("closed", ""), broken: []string{onlyAllowed}},
		"it is buried unsent":            {Op: put("name", "", 201), told: unseen},
		"unsent is not tried again":      {Op: put("name", "", 201), told: retried, broken: []string{"history is true"}},
		"others are not buried unsent":   {Op: put("", "", 201), told: unseen, broken: []string{"history is true"}},
	} {
		h := history([]Op{one.Op})
		if one.sent != nil {
			h.Deliveries = []Delivery{*one.sent}
		}
		h.Rules = map[string]Rule{"theirs": {Tenants: []string{"other"}}, "closed": {}, "name": {Later: true}}
		if h.Final.Recorded = []Recorded{one.told}; one.Status == 422 {
			delete(h.Final.Jobs, "k")
		}
		got := slices.DeleteFunc(broken(h), func(rule string) bool { return rule == "no mixture" || rule == "nothing fires unasked" })
		if !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, one.broken, Check(h))
		}
	}
}
