package handlers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/oklog/ulid/v2"
)

// requestIDHeader names a request, in its answer, in the log and in the audit trail.
const requestIDHeader = "X-Request-Id"

// maxRequestID bounds a request's name, in bytes.
const maxRequestID = 128

// nameRequest gives each request a name, unless its client has given it one that can stand anywhere, and answers with
// it. From then on, the request's header has that name and no other.
func nameRequest(c *gin.Context) {
	ids := c.Request.Header[requestIDHeader]
	if len(ids) != 1 || !validRequestID(ids[0]) {
		ids = []string{ulid.Make().String()}
		c.Request.Header[requestIDHeader] = ids
	}
	c.Writer.Header()[requestIDHeader] = ids
}

// validRequestID reports whether a client's name for a request is taken: if it needs no quoting in any log.
func validRequestID(id string) bool {
	for i := range len(id) {
		switch b := id[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		case b == '-', b == '_', b == '.', b == ':', b == '/', b == '+', b == '=', b == '@':
		default:
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

// requestID is the name of a request that was named.
func requestID(r *http.Request) string { return r.Header.Get(requestIDHeader) }
