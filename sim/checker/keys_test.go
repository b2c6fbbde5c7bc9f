package checker

import (
	"slices"
	"testing"
	"time"
)

// asked is a request by a key with a secret, at replica 1.
func asked(from float64, secret, status int) Op {
	return Op{
		Kind: Preview, Caller: "guest", Replica: 1, Secret: secret,
		Invoked: at(from), Arrived: at(from), Returned: at(from + 0.1), Status: status,
	}
}

// ofKey is a revocation, or a rotation that gives a secret, at replica 0.
func ofKey(kind Kind, from float64, status, secret int, overlap float64) Op {
	return Op{
		Kind: kind, Caller: "guest", Secret: secret, Overlap: seconds(overlap),
		Invoked: at(from), Arrived: at(from), Returned: at(from + 0.1), Status: status,
	}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// changed returns an operation with a change.
func changed(o Op, change func(*Op)) Op { change(&o); return o }

// keyCase is a history about a caller's key, and the rule that it breaks; empty for none.
type keyCase struct {
	ops      []Op
	expires  float64
	troubles []Trouble
	broken   string
}

func judgeKeys(t *testing.T, cases map[string]keyCase) {
	t.Helper()
	for name, c := range cases {
		h := history(c.ops)
		guest := Permissions{Role: "submitter", Tenants: []string{"*"}}
		if c.expires > 0 {
			guest.Expires = at(c.expires)
		}
		h.Permissions, h.Troubles = map[string]Permissions{"guest": guest}, c.troubles
		want := []string{c.broken}
		if c.broken == "" {
			want = nil
		}
		if got := broken(h); !slices.Equal(got, want) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, want, Check(h))
		}
	}
}

func troubleOf(what string, replica int, from, to float64) []Trouble {
	return []Trouble{{What: what, Replica: replica, From: at(from), To: at(to)}}
}

// TestExpiredKey: a key is refused from its expiry on, and not before it, by the clock of the replica that is asked.
func TestExpiredKey(t *testing.T) {
	const rule, valid = "an expired key is refused", "a valid key is accepted"
	behind := func(o Op) Op { o.Behind = time.Second; return o }
	ahead := func(o Op) Op { o.Ahead = time.Second; return o }
	late := changed(asked(99, 0, 200), func(o *Op) { o.Arrived, o.Returned = at(100.5), at(101) })
	judgeKeys(t, map[string]keyCase{
		"it is accepted after the expiry":    {ops: []Op{asked(100, 0, 200)}, expires: 100, broken: rule},
		"it is forbidden something":          {ops: []Op{changed(asked(100, 0, 403), func(o *Op) { o.Kind = Quota })}, expires: 100, broken: rule},
		"it arrived after the expiry":        {ops: []Op{late}, expires: 100, broken: rule},
		"it does not expire":                 {ops: []Op{asked(100, 0, 200)}},
		"it was about to expire":             {ops: []Op{asked(99.95, 0, 200)}, expires: 100},
		"not by the replica's clock":         {ops: []Op{behind(asked(100.5, 0, 200))}, expires: 100},
		"by that clock too":                  {ops: []Op{behind(asked(101, 0, 200))}, expires: 100, broken: rule},
		"the clock was set meanwhile":        {ops: []Op{asked(100, 0, 200)}, expires: 100, troubles: troubleOf("step", 1, 100.05, 130)},
		"it was set back a moment before":    {ops: []Op{asked(100, 0, 200)}, expires: 100, troubles: troubleOf("drift", 1, 60, 99)},
		"it was set long before":             {ops: []Op{asked(100, 0, 200)}, expires: 100, troubles: troubleOf("step", 1, 90, 130), broken: rule},
		"another clock was set":              {ops: []Op{asked(100, 0, 200)}, expires: 100, troubles: troubleOf("step", 0, 100.05, 130), broken: rule},
		"another fault is no excuse":         {ops: []Op{asked(100, 0, 200)}, expires: 100, troubles: troubleOf("cut", 1, 100.05, 130), broken: rule},
		"it is refused after the expiry":     {ops: []Op{asked(100, 0, 401)}, expires: 100},
		"the store is away":                  {ops: []Op{asked(100, 0, 503)}, expires: 100},
		"there were too many wrong keys":     {ops: []Op{asked(100, 0, 429)}, expires: 100},
		"there is no answer":                 {ops: []Op{asked(100, 0, 0)}, expires: 100},
		"it is refused before the expiry":    {ops: []Op{asked(99, 0, 401)}, expires: 100, broken: valid},
		"by a clock ahead it has expired":    {ops: []Op{ahead(asked(99, 0, 401))}, expires: 100},
		"nor has it by that":                 {ops: []Op{ahead(asked(98.8, 0, 401))}, expires: 100, broken: valid},
		"that clock was set meanwhile":       {ops: []Op{asked(90, 0, 401)}, expires: 100, troubles: troubleOf("step", 1, 85, 130)},
		"the answer came after the expiry":   {ops: []Op{asked(99.95, 0, 401)}, expires: 100},
		"an operator needs no key":           {ops: []Op{changed(asked(100, 0, 200), func(o *Op) { o.Caller = "" })}, expires: 100},
		"an operator has none to judge":      {ops: []Op{changed(asked(100, 0, 401), func(o *Op) { o.Caller = "" })}},
		"its revocation is not asked by it":  {ops: []Op{ofKey(Revoke, 101, 204, 0, 0)}, expires: 100},
		"a rotation of it is not, either":    {ops: []Op{ofKey(Rotate, 101, 422, 0, 0)}, expires: 100},
		"the key that expires is another's":  {ops: []Op{changed(asked(100, 0, 200), func(o *Op) { o.Caller = "friend" })}, expires: 100},
		"a forbidden operation is judged so": {ops: []Op{changed(asked(99, 0, 401), func(o *Op) { o.Kind = Quota })}, expires: 100, broken: valid},
	})
}

// TestRevokedKey: a revoked key is refused at once where it was revoked, some time later where the store is reached, and
// after the longest time for which it may be remembered in any case.
func TestRevokedKey(t *testing.T) {
	const rule, valid = "a revoked key is refused", "a valid key is accepted"
	revoked := func(status int) Op { return ofKey(Revoke, 100, status, 0, 0) }
	here := func(o Op) Op { o.Replica = 0; return o }
	away := troubleOf("cut", 1, 90, 600)
	judgeKeys(t, map[string]keyCase{
		"accepted some time later":            {ops: []Op{revoked(204), asked(107, 0, 200)}, broken: rule},
		"forbidden something":                 {ops: []Op{revoked(204), changed(asked(107, 0, 403), func(o *Op) { o.Kind = Quota })}, broken: rule},
		"accepted shortly after":              {ops: []Op{revoked(204), asked(106, 0, 200)}},
		"accepted before":                     {ops: []Op{revoked(204), asked(50, 0, 200)}},
		"at once where it was revoked":        {ops: []Op{revoked(204), here(asked(100.2, 0, 200))}, broken: rule},
		"even if the store is away":           {ops: []Op{revoked(204), here(asked(100.2, 0, 200))}, troubles: troubleOf("cut", 0, 100.1, 200), broken: rule},
		"while it was revoked":                {ops: []Op{revoked(204), here(asked(100.05, 0, 200))}},
		"the store is not reached":            {ops: []Op{revoked(204), asked(107, 0, 200)}, troubles: away},
		"it was not a minute before":          {ops: []Op{revoked(204), asked(107, 0, 200)}, troubles: troubleOf("cut", 1, 40, 48)},
		"it was not long before":              {ops: []Op{revoked(204), asked(107, 0, 200)}, troubles: troubleOf("cut", 1, 30, 46), broken: rule},
		"another replica does not reach it":   {ops: []Op{revoked(204), asked(107, 0, 200)}, troubles: troubleOf("cut", 2, 40, 200), broken: rule},
		"accepted within five minutes":        {ops: []Op{revoked(204), asked(400, 0, 200)}, troubles: away},
		"accepted after them":                 {ops: []Op{revoked(204), asked(400.2, 0, 200)}, troubles: away, broken: rule},
		"another one's was revoked":           {ops: []Op{changed(revoked(204), func(o *Op) { o.Caller = "friend" }), asked(107, 0, 200)}},
		"the revocation was refused":          {ops: []Op{revoked(422), asked(107, 0, 200)}},
		"it is unknown":                       {ops: []Op{revoked(0), asked(107, 0, 200)}},
		"there is no such key any more":       {ops: []Op{revoked(404), asked(107, 0, 200)}, broken: rule},
		"that was found out a moment before":  {ops: []Op{revoked(404), here(asked(100.2, 0, 200))}},
		"it was rotated only":                 {ops: []Op{ofKey(Rotate, 100, 200, 1, 1), asked(107, 1, 200)}},
		"refused at once":                     {ops: []Op{revoked(204), asked(100.2, 0, 401)}},
		"refused, and the revocation unknown": {ops: []Op{revoked(0), asked(107, 0, 401)}},
		"refused before":                      {ops: []Op{revoked(204), asked(99, 0, 401)}, broken: valid},
		"refused, and nothing was revoked":    {ops: []Op{changed(revoked(422), func(o *Op) { o.Unchanged = true }), asked(107, 0, 401)}, broken: valid},
		"refused, and another's was revoked":  {ops: []Op{changed(revoked(204), func(o *Op) { o.Caller = "friend" }), asked(107, 0, 401)}, broken: valid},
	})
}

// TestRotatedKey: the secret before a rotation is valid in the overlap, by the clock of the replica that is asked; that
// before two rotations is not. The new secret is valid at once.
func TestRotatedKey(t *testing.T) {
	const rule, valid = "a former secret is refused", "a valid key is accepted"
	rotated := func(from float64, secret int, overlap float64) Op { return ofKey(Rotate, from, 200, secret, overlap) }
	unknown := ofKey(Rotate, 100, 0, 0, 0)
	ahead := func(o Op) Op { o.Ahead = time.Second; return o }
	behind := func(o Op) Op { o.Behind = time.Second; return o }
	here := func(o Op) Op { o.Replica = 0; return o }
	away := troubleOf("cut", 1, 90, 600)
	judgeKeys(t, map[string]keyCase{
		"the new secret at once":                {ops: []Op{rotated(100, 1, 0), asked(100.2, 1, 200)}},
		"it is refused":                         {ops: []Op{rotated(100, 1, 0), asked(100.2, 1, 401)}, broken: valid},
		"the former one without an overlap":     {ops: []Op{rotated(100, 1, 0), asked(107, 0, 200)}, broken: rule},
		"at once where it was rotated":          {ops: []Op{rotated(100, 1, 0), here(asked(100.2, 0, 200))}, broken: rule},
		"a moment after elsewhere":              {ops: []Op{rotated(100, 1, 0), asked(106, 0, 200)}},
		"where the store is not reached":        {ops: []Op{rotated(100, 1, 0), asked(107, 0, 200)}, troubles: away},
		"there after five minutes":              {ops: []Op{rotated(100, 1, 0), asked(400.2, 0, 200)}, troubles: away, broken: rule},
		"the rotation is unknown":               {ops: []Op{unknown, asked(150, 0, 200)}},
		"the rotation was refused":              {ops: []Op{ofKey(Rotate, 100, 422, 0, 0), asked(107, 0, 200)}},
		"another one's was rotated":             {ops: []Op{changed(rotated(100, 1, 0), func(o *Op) { o.Caller = "friend" }), asked(107, 0, 200)}},
		"in the overlap":                        {ops: []Op{rotated(100, 1, 20), asked(110, 0, 200)}},
		"refused in the overlap":                {ops: []Op{rotated(100, 1, 20), asked(119.8, 0, 401)}, broken: valid},
		"refused as the overlap ends":           {ops: []Op{rotated(100, 1, 20), asked(119.95, 0, 401)}},
		"it has ended by a clock ahead":         {ops: []Op{rotated(100, 1, 20), ahead(asked(119, 0, 401))}},
		"not by this":                           {ops: []Op{rotated(100, 1, 20), ahead(asked(118.8, 0, 401))}, broken: valid},
		"it has by the rotation's clock":        {ops: []Op{behind(rotated(100, 1, 20)), asked(119, 0, 401)}},
		"not yet":                               {ops: []Op{behind(rotated(100, 1, 20)), asked(118.8, 0, 401)}, broken: valid},
		"the clock was set meanwhile":           {ops: []Op{rotated(100, 1, 20), asked(110, 0, 401)}, troubles: troubleOf("step", 1, 108, 200)},
		"the rotation's clock was set":          {ops: []Op{rotated(100, 1, 20), asked(110, 0, 401)}, troubles: troubleOf("step", 0, 100.05, 200)},
		"no clock matters for the new one":      {ops: []Op{rotated(100, 1, 20), asked(110, 1, 401)}, troubles: troubleOf("step", 1, 108, 200), broken: valid},
		"after the overlap":                     {ops: []Op{rotated(100, 1, 20), asked(120.1, 0, 200)}, broken: rule},
		"just before its end":                   {ops: []Op{rotated(100, 1, 20), asked(120.05, 0, 200)}},
		"not by a clock behind":                 {ops: []Op{rotated(100, 1, 20), behind(asked(121, 0, 200))}},
		"by that too":                           {ops: []Op{rotated(100, 1, 20), behind(asked(121.1, 0, 200))}, broken: rule},
		"not by the rotation's clock":           {ops: []Op{ahead(rotated(100, 1, 20)), asked(121, 0, 200)}},
		"by both":                               {ops: []Op{ahead(rotated(100, 1, 20)), asked(121.1, 0, 200)}, broken: rule},
		"that clock was set":                    {ops: []Op{rotated(100, 1, 20), asked(121, 0, 200)}, troubles: troubleOf("step", 1, 0, 120)},
		"so was that where it was rotated":      {ops: []Op{rotated(100, 1, 20), here(asked(121, 0, 200))}, troubles: troubleOf("step", 0, 118, 200)},
		"the other was set":                     {ops: []Op{rotated(100, 1, 20), asked(190, 0, 200)}, troubles: troubleOf("step", 0, 100, 180)},
		"after two rotations":                   {ops: []Op{rotated(90, 1, 60), rotated(100, 2, 60), asked(107, 0, 200)}, broken: rule},
		"refused after two rotations":           {ops: []Op{rotated(90, 1, 60), rotated(100, 2, 60), asked(101, 0, 401)}},
		"refused between them":                  {ops: []Op{rotated(90, 1, 60), rotated(100, 2, 60), asked(98, 0, 401)}, broken: valid},
		"refused though it is the second":       {ops: []Op{rotated(90, 1, 60), rotated(100, 2, 60), asked(107, 1, 401)}, broken: valid},
		"the second one":                        {ops: []Op{rotated(90, 1, 60), rotated(100, 2, 60), asked(107, 1, 200)}},
		"the other rotation is unknown":         {ops: []Op{rotated(90, 1, 60), unknown, asked(107, 0, 200)}},
		"refused, as it may be two":             {ops: []Op{rotated(90, 1, 60), unknown, asked(107, 0, 401)}},
		"refused, as one may come late":         {ops: []Op{unknown, rotated(120, 1, 60), asked(125, 1, 401)}},
		"it came too early for that":            {ops: []Op{unknown, rotated(135, 1, 60), asked(140, 1, 401)}, broken: valid},
		"the other one was refused":             {ops: []Op{rotated(90, 1, 60), changed(ofKey(Rotate, 100, 422, 0, 0), func(o *Op) { o.Unchanged = true }), asked(101, 0, 401)}, broken: valid},
		"the other one is another's":            {ops: []Op{rotated(90, 1, 60), changed(rotated(100, 2, 0), func(o *Op) { o.Caller = "friend" }), asked(101, 0, 401)}, broken: valid},
		"another key has such a secret":         {ops: []Op{rotated(100, 1, 0), rotated(120, 2, 0), changed(rotated(150, 1, 0), func(o *Op) { o.Caller = "friend" }), asked(200, 1, 200)}, broken: rule},
		"two at a time, by the first":           {ops: []Op{rotated(100, 1, 0), rotated(100.05, 2, 0), asked(107, 1, 200)}},
		"two at a time, by the second":          {ops: []Op{rotated(100, 1, 0), rotated(100.05, 2, 0), asked(107, 2, 200)}},
		"two at a time, by that before":         {ops: []Op{rotated(100, 1, 60), rotated(100.05, 2, 60), asked(107, 0, 200)}, broken: rule},
		"two at a time, and one is refused":     {ops: []Op{rotated(100, 1, 0), rotated(100.05, 2, 0), asked(107, 1, 401)}},
		"of two, one is not known here":         {ops: []Op{rotated(90, 1, 60), rotated(100, 2, 60), asked(106, 0, 200)}},
		"a rotation begins as it is refused":    {ops: []Op{rotated(100, 1, 0), asked(99.95, 0, 401)}},
		"one begins later":                      {ops: []Op{rotated(100.2, 1, 0), asked(100, 0, 401)}, broken: valid},
		"the operation is forbidden to it":      {ops: []Op{rotated(100, 1, 0), changed(asked(107, 0, 403), func(o *Op) { o.Kind = Quota })}, broken: rule},
		"it is told that the store is away":     {ops: []Op{rotated(100, 1, 0), asked(107, 0, 503)}},
		"the new one is told so where it is":    {ops: []Op{rotated(100, 1, 0), asked(107, 1, 503)}, troubles: away},
		"the new one is told so where it's not": {ops: []Op{rotated(100, 1, 0), asked(107, 1, 503)}, broken: valid},
	})
}

// TestRememberedKey: what needs no store is answered for a key that the replica has seen in the last five minutes.
func TestRememberedKey(t *testing.T) {
	const rule = "a valid key is accepted"
	seen := asked(100, 0, 200)
	away := troubleOf("cut", 1, 110, 600)
	with := func(more ...Trouble) []Trouble { return append(more, away...) }
	judgeKeys(t, map[string]keyCase{
		"it was seen lately":              {ops: []Op{seen, asked(300, 0, 503)}, troubles: away, broken: rule},
		"it is accepted":                  {ops: []Op{seen, asked(300, 0, 200)}, troubles: away},
		"not for five minutes":            {ops: []Op{seen, asked(394, 0, 503)}, troubles: away},
		"for a bit less":                  {ops: []Op{seen, asked(393.8, 0, 503)}, troubles: away, broken: rule},
		"it was never seen":               {ops: []Op{asked(300, 0, 503)}, troubles: away},
		"it was refused":                  {ops: []Op{asked(100, 0, 503), asked(300, 0, 503)}, troubles: append(away, troubleOf("cut", 1, 99, 101)...)},
		"it was seen elsewhere":           {ops: []Op{changed(seen, func(o *Op) { o.Replica = 2 }), asked(300, 0, 503)}, troubles: away},
		"another key was seen":            {ops: []Op{changed(seen, func(o *Op) { o.Caller = "friend" }), asked(300, 0, 503)}, troubles: away},
		"another secret was seen":         {ops: []Op{ofKey(Rotate, 90, 200, 1, 400), seen, asked(300, 1, 503)}, troubles: away},
		"it was seen at the same time":    {ops: []Op{changed(seen, func(o *Op) { o.Returned = at(110.05) }), asked(110, 0, 503)}, troubles: troubleOf("cut", 1, 110.08, 600)},
		"it was seen just before":         {ops: []Op{changed(seen, func(o *Op) { o.Returned = at(109.95) }), asked(110, 0, 503)}, troubles: troubleOf("cut", 1, 110.08, 600), broken: rule},
		"it was seen in the trouble":      {ops: []Op{changed(seen, func(o *Op) { o.Invoked = at(120) }), asked(300, 0, 503)}, troubles: troubleOf("cut", 1, 50, 600)},
		"a trouble was shortly before":    {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("slow", -1, 30, 45)...)},
		"the replica has crashed since":   {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("crash", 1, 150, 170)...)},
		"it has stopped since":            {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("stop", 1, 150, 170)...)},
		"another replica has crashed":     {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("crash", 0, 150, 170)...), broken: rule},
		"it crashes later":                {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("crash", 1, 310, 330)...), broken: rule},
		"it had crashed long before":      {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("crash", 1, 10, 30)...), broken: rule},
		"it stood still":                  {ops: []Op{seen, asked(300, 0, 503)}, troubles: with(troubleOf("stall", 1, 150, 170)...), broken: rule},
		"it was rotated there":            {ops: []Op{seen, changed(ofKey(Rotate, 105, 200, 1, 400), func(o *Op) { o.Replica = 1 }), asked(300, 0, 503)}, troubles: away},
		"a rotation there is unknown":     {ops: []Op{seen, changed(ofKey(Rotate, 105, 0, 1, 400), func(o *Op) { o.Replica = 1 }), asked(300, 0, 503)}, troubles: away},
		"it was rotated there before":     {ops: []Op{changed(ofKey(Rotate, 90, 200, 1, 400), func(o *Op) { o.Replica = 1 }), seen, asked(300, 0, 503)}, troubles: away, broken: rule},
		"it was rotated there later":      {ops: []Op{seen, changed(ofKey(Rotate, 301, 200, 1, 400), func(o *Op) { o.Replica = 1 }), asked(300, 0, 503)}, troubles: away, broken: rule},
		"a rotation there was refused":    {ops: []Op{seen, changed(ofKey(Rotate, 105, 422, 1, 400), func(o *Op) { o.Replica, o.Unchanged = 1, true }), asked(300, 0, 503)}, troubles: away, broken: rule},
		"a rotation does not show it":     {ops: []Op{changed(ofKey(Rotate, 100, 422, 0, 400), func(o *Op) { o.Replica = 1 }), asked(300, 0, 503)}, troubles: away},
		"another's was rotated there":     {ops: []Op{seen, changed(ofKey(Rotate, 105, 200, 1, 400), func(o *Op) { o.Replica, o.Caller = 1, "friend" }), asked(300, 0, 503)}, troubles: away, broken: rule},
		"it was rotated elsewhere":        {ops: []Op{seen, ofKey(Rotate, 105, 200, 1, 400), asked(300, 0, 503)}, troubles: away, broken: rule},
		"it was revoked elsewhere":        {ops: []Op{seen, ofKey(Revoke, 105, 204, 0, 0), asked(300, 0, 503)}, troubles: away},
		"a reading needs the store":       {ops: []Op{seen, changed(asked(300, 0, 503), func(o *Op) { o.Kind, o.Key = Get, "k" })}, troubles: away},
		"the store is reached":            {ops: []Op{asked(300, 0, 503)}, broken: rule},
		"a reading may have other causes": {ops: []Op{changed(asked(300, 0, 503), func(o *Op) { o.Kind, o.Key = Get, "k" })}},
	})
}
