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
	header.Set("X-Content-Type-Options", "nosniff") // else a browser may take a payload that is shown for a page
	// However long the work took: from here on, a client that does not read is cut off. Not all writers have deadlines.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(patience))
	c.Writer.WriteHeader(status)
	_, _ = c.Writer.Write(body) // fails only when the client has gone
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

// digest stands for a body in an entity tag.
func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:12])
}

// tagOf is the entity tag of a job's representation: the version, which If-Match goes by, and a digest of the
// representation.
func tagOf(version job.Revision, shown []byte) string { return string(version) + "-" + digest(shown) }

// writeNoBody answers with a status alone.
func writeNoBody(c *gin.Context, status int) {
	c.Status(status)
	c.Writer.WriteHeaderNow()
}

// mustEncode marshals one of this package's own documents, none of which can fail to.
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

// withCallback adds a callback to an encoded object, with the very bytes that are delivered.
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

// jobPath is the path at which a job is found.
func jobPath(key string) string {
	escaped := url.PathEscape(key)
	if key == "." || key == ".." { // clients resolve these away when they are not escaped
		escaped = strings.ReplaceAll(escaped, ".", "%2E")
	}
	return "/v1/jobs/" + escaped
}

// instantText writes an instant, or nothing for none.
func instantText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return job.FormatTime(t)
}
