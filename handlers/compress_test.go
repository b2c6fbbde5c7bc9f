package handlers_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
)

// raw makes a request as [api.call] does, with the client's own Accept-Encoding, and returns the answer as it came over
// the wire.
func (a *api) raw(method, path, accept string, headers ...string) answer {
	a.Helper()
	request, err := http.NewRequestWithContext(a.Context(), method, a.url+path, http.NoBody)
	if err != nil {
		a.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", accept) // so the client decodes nothing by itself
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		a.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		a.Fatal(err)
	}
	return answer{api: a, status: response.StatusCode, header: response.Header, body: read}
}

func unzip(t *testing.T, body []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// TestCompression: a large answer is compressed for clients that accept that. Each form has a tag of its own, which
// serves both conditions.
func TestCompression(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Limits.Instants = 100 })
	offsets := make([]time.Duration, 20)
	for i := range offsets {
		offsets[i] = time.Duration(i+1) * time.Hour
	}
	a.call("PUT", "/v1/jobs/large", body("large", offsets...)).want(201)
	a.call("PUT", "/v1/jobs/small", body("small", time.Hour)).want(201)
	for _, path := range []string{"/v1/jobs/large", "/openapi.yaml", "/openapi.json"} {
		plain := a.raw("GET", path, "identity").want(200)
		if coding := plain.header.Get("Content-Encoding"); coding != "" {
			t.Errorf("%s is %s for who takes nothing", path, coding)
		}
		for accept, want := range map[string]string{"gzip": "gzip", "br, gzip;q=0.5": "gzip", "gzip;q=0": "", "br, zstd": ""} {
			got := a.raw("GET", path, accept).want(200)
			read, tag := got.body, got.header.Get("ETag")
			if want == "gzip" {
				read = unzip(t, got.body)
			}
			if got.header.Get("Content-Encoding") != want || !bytes.Equal(read, plain.body) || got.header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%s, for who takes %s: %v", path, accept, got.header)
			}
			if (tag == plain.header.Get("ETag")) != (want == "") {
				t.Errorf("%s, for who takes %s: the tag is %s, and that of the plain form %s", path, accept, tag, plain.header.Get("ETag"))
			}
			for _, known := range []string{tag, "W/" + tag} {
				if again := a.raw("GET", path, accept, "If-None-Match: "+known).want(304); again.header.Get("ETag") != tag || len(again.body) > 0 {
					t.Errorf("%s: %v\n%s", path, again.header, again.body)
				}
			}
		}
	}
	if got := a.raw("GET", "/v1/jobs/small", "gzip").want(200); got.header.Get("Content-Encoding") != "" || got.header.Get("Vary") != "Accept-Encoding" {
		t.Errorf("what is small is answered with %v", got.header)
	}
	zipped := a.raw("GET", "/v1/jobs/large", "gzip").header.Get("ETag")
	a.patch("large", `{"deadline":"1h"}`, "If-Match: "+zipped).want(200)
	a.patch("large", `{"deadline":"2h"}`, "If-Match: "+zipped).want(412)
	if head := a.raw("HEAD", "/v1/jobs/large", "gzip").want(200); head.header.Get("Content-Encoding") != "" || head.header.Get("Content-Length") == "" {
		t.Errorf("HEAD is answered with %v", head.header)
	}
}

// TestCompressedStream: results reach a client as they are made, compressed too.
func TestCompressedStream(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	reader, writer := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/v1/jobs/batch", reader)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", asLines)
	request.Header.Set("Accept-Encoding", "gzip")
	answers := make(chan *http.Response, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			_ = reader.CloseWithError(err)
		}
		answers <- response
	}()
	send := func(key string) {
		if _, err := io.WriteString(writer, body(key, time.Hour)+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	send("a")
	response := <-answers
	if response == nil {
		return
	}
	defer response.Body.Close()
	if coding := response.Header.Get("Content-Encoding"); coding != "gzip" {
		t.Fatalf("the results are %q", coding)
	}
	results, err := gzip.NewReader(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"a", "b", "c"} {
		if i > 0 {
			send(key)
		}
		line := make([]byte, 0, 500)
		for len(line) == 0 || line[len(line)-1] != '\n' { // it comes while the request is still open
			var one [1]byte
			if _, err := io.ReadFull(results, one[:]); err != nil {
				t.Fatal(err)
			}
			line = append(line, one[0])
		}
		if !strings.Contains(string(line), `"key":"`+key+`"`) {
			t.Errorf("the result is %s", line)
		}
	}
	_ = writer.Close()
	if rest, err := io.ReadAll(results); err != nil || len(rest) > 0 {
		t.Errorf("%q is left: %v", rest, err)
	}
}
