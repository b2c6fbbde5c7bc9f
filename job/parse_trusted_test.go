package job_test

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

// A document that was accepted once reads the same again, byte for byte in the fields that keep their bytes.
func TestReread(t *testing.T) {
	type document struct {
		URL     string            `json:"url" validate:"required"`
		Headers map[string]string `json:"headers"`
		Payload jsontext.Value    `json:"payload"`
		Count   *int              `json:"count"`
	}
	for _, text := range []string{
		`{"url":"x"}`,
		"\n{ \"url\" : \"\\u2028<é>\", \"payload\" : {\"n\" : [1e2, 12345678901234567890, 1.0]}, \"headers\":{\"b\":\"1\",\"a\":\"\"}}\t",
		`{"url":"x","payload":null,"count":0}`,
		`{"url":"x","payload":"a \" b","count":7}`,
	} {
		want, err := job.Parse[document]([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := job.ParseTrusted[document]([]byte(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read again as %+v, %v, want %+v", text, got, err, want)
		}
	}
	if _, err := job.ParseTrusted[document]([]byte(`{"url":`)); err == nil {
		t.Error("what breaks off is read again")
	}
}
