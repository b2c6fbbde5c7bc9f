package handlers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/job"
)

// writeJSON answers with a document.
func writeJSON(c *gin.Context, status int, v any) error {
	writeAs(c, status, "application/json", mustEncode(v))
	return nil
}

// writeAs answers with a body of a media type.
func writeAs(c *gin.Context, status int, mediaType string, body []byte) {
	header := c.Writer.Header()
	header.Set("Content-Type", mediaType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("X-Content-Type-Options", "nosniff") // else a browser may render a payload as a page
	// The deadline starts here, after the work: a client that does not read is cut off. Not all writers have deadlines.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(patience))
	c.Writer.WriteHeader(status)
	_, _ = c.Writer.Write(body) // fails only if the client has disconnected
}

// writeTagged answers with a body under an entity tag, or with 304 if the client has the body of that tag.
func writeTagged(c *gin.Context, mediaType, tag string, body []byte) {
	if known, ok := knownTag(c.Request, tag); ok {
		setETag(c, known)
		writeNoBody(c, http.StatusNotModified)
		return
	}
	setETag(c, tag)
	writeAs(c, http.StatusOK, mediaType, body)
}

// digest returns the part of an entity tag that depends on the body.
func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:12])
}

// tagOf returns the entity tag of a job's representation: the version, which If-Match compares, and a digest of the
// representation.
func tagOf(version job.Revision, shown []byte) string { return string(version) + "-" + digest(shown) }

// writeNoBody answers with a status alone.
func writeNoBody(c *gin.Context, status int) {
	c.Status(status)
	c.Writer.WriteHeaderNow()
}

// mustEncode marshals one of this package's own documents, which can't fail.
func mustEncode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// mustEncodeTo appends the encoded document to a buffer.
func mustEncodeTo(b *bytes.Buffer, v any) {
	if err := json.MarshalWrite(b, v); err != nil {
		panic(err)
	}
}

// withCallback adds a callback to an encoded object, with exactly the bytes that are delivered.
func withCallback(object []byte, t job.Target) []byte {
	return slices.Concat(object[:len(object)-1], []byte(`,"callback":`), t.EncodeCallback(), []byte("}"))
}

// writePage answers with a page of encoded items.
func writePage(c *gin.Context, items [][]byte, nextCursor string) error {
	body := []byte(`{"items":[`)
	for i, item := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, item...)
	}
	body = append(body, ']')
	if nextCursor != "" {
		body = slices.Concat(body, []byte(`,"nextCursor":`), mustEncode(nextCursor))
	}
	writeAs(c, http.StatusOK, "application/json", append(body, '}'))
	return nil
}

// setETag sets a strong entity tag. The answer to a change of a job has the version alone.
func setETag[T ~string](c *gin.Context, tag T) { c.Header("ETag", `"`+string(tag)+`"`) }

// jobPath returns the path of a job.
func jobPath(key string) string {
	escaped := url.PathEscape(key)
	if key == "." || key == ".." { // clients resolve these as path segments unless they are escaped
		escaped = strings.ReplaceAll(escaped, ".", "%2E")
	}
	return "/v1/jobs/" + escaped
}

// instantText formats an instant; it returns "" for the zero time.
func instantText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return job.FormatTime(t)
}
