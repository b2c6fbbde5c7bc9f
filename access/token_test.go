package access_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/access"
)

// scanned is the expression that docs/access.md gives to scanners.
var scanned = regexp.MustCompile(`\bcarillon_[0-9A-Za-z]{12}_[0-9A-Za-z]{36}\b`)

// A token is fixed here, so that those of earlier versions stay valid.
const someID, someToken = "4iC0dQxYb7Zr", "carillon_4iC0dQxYb7Zr_Hk2mZ8rT0aVbQ1pLwX5nJcYsE3uGfD07Cfao"

func TestParseToken(t *testing.T) {
	if id, ok := access.ParseToken(someToken); !ok || id != someID {
		t.Fatalf("%q, %t", id, ok)
	}
	if !scanned.MatchString("Authorization: Bearer " + someToken + "\n") {
		t.Error("scanners do not find it")
	}
	flip := func(i int) string { // another letter there
		b := []byte(someToken)
		b[i] ^= 1
		return string(b)
	}
	bad := map[string]string{
		"nothing": "", "prefix": "carillon_", "truncated": someToken[:len(someToken)-1], "first cut off": someToken[1:],
		"doubled": someToken + someToken, "two": someToken + " " + someToken, "two with a comma": someToken + "," + someToken,
		"longer": someToken + "0", "space": someToken + " ", "line": someToken + "\n", "upper case": strings.ToUpper(someToken),
		"Bearer": "Bearer " + someToken, "id alone": "carillon_" + someID, "of another kind": "ghp_" + someToken[9:],
		"not base 62": strings.Replace(someToken, "H", "-", 1), "not ASCII": someToken[:len(someToken)-2] + "é",
		"no separator": strings.Replace(someToken, "_Hk", "0Hk", 1), "other id": strings.Replace(someToken, "4iC", "4iD", 1),
		"NUL": someToken[:20] + "\x00" + someToken[21:],
	}
	for i := range someToken {
		bad["altered at "+string(rune('0'+i))] = flip(i)
	}
	for what, token := range bad {
		if id, ok := access.ParseToken(token); ok || id != "" {
			t.Errorf("%s: %q is a token of %q", what, token, id)
		}
	}
}

func TestMaskTokens(t *testing.T) {
	const masked = "carillon_" + someID + "_***"
	for text, want := range map[string]string{
		"": "", "k": "k", "carillon_": "carillon_", "carillon_" + someID: "carillon_" + someID,
		someToken: masked, "access_token=" + someToken + "&x=y": "access_token=" + masked + "&x=y",
		someToken + someToken: masked, someToken + "," + someToken: masked + "," + masked, someToken + "0": masked,
		"carillon_" + someToken:                                 "carillon_" + masked,
		someToken[:len(someToken)-7]:                            masked, // its checksum can be computed
		"carillon_" + someID + "_of-a-job":                      "carillon_" + someID + "_of-a-job",
		"token=eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln-_&a=b": "token=eyJ***&a=b",
		"eyJhbGciOiJub25lIn0.e30.":                              "eyJ***", "eyJob.of.a.team": "eyJob.of.a.team",
	} {
		if got := access.MaskTokens(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(someToken)
	f.Add(someToken[:40])
	f.Add(someToken + someToken)
	f.Add("carillon_")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		id, ok := access.ParseToken(token)
		switch {
		case !ok && id != "":
			t.Errorf("%q is no token, and of %q", token, id)
		case ok && (!access.ValidKeyID(id) || !strings.HasPrefix(token, access.TokenPrefix+id+"_") || !scanned.MatchString(token)):
			t.Errorf("%q is a token of %q", token, id)
		}
	})
}

func TestValidKeyID(t *testing.T) {
	for id, want := range map[string]bool{
		someID: true, "": false, someID[1:]: false, someID + "0": false, "4iC0dQxYb7Z/": false, "4iC0dQxYb7é": false,
	} {
		if got := access.ValidKeyID(id); got != want {
			t.Errorf("%q: %t", id, got)
		}
	}
}
