package handlers

import (
	"crypto/rand"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/oklog/ulid/v2"

	"github.com/carillon-scheduler/carillon/access"
)

// requestIDHeader has the request's id, which also the answer, the log and the audit trail have.
const requestIDHeader = "X-Request-Id"

// maxRequestID bounds a request's id, in bytes.
const maxRequestID = 128

// nameRequest gives each request an id, or keeps a valid one from its client, and adds it to the answer. Then the
// request's header has this id only.
func nameRequest(c *gin.Context) {
	ids := c.Request.Header[requestIDHeader]
	if len(ids) != 1 || !validRequestID(ids[0]) {
		ids = []string{ulid.MustNew(ulid.Now(), rand.Reader).String()}
		c.Request.Header[requestIDHeader] = ids
	}
	c.Writer.Header()[requestIDHeader] = ids
}

// validRequestID reports whether a client's id for a request is accepted: it must need no quoting in any log.
func validRequestID(id string) bool {
	for i := range len(id) {
		switch b := id[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		case b == '-', b == '_', b == '.', b == ':', b == '/', b == '+', b == '=', b == '@':
		default:
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID && access.MaskTokens(id) == id
}

// requestID returns the id that nameRequest has set.
func requestID(r *http.Request) string { return r.Header.Get(requestIDHeader) }
