package handlers

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// readJSON reads a request's body, which must be JSON and within the limit.
func (a *api) readJSON(c *gin.Context) ([]byte, error) {
	if _, err := mediaType(c.Request, "application/json"); err != nil {
		return nil, err
	}
	return a.readBody(c)
}

// readBody reads a request's body, which must be within the limit.
func (a *api) readBody(c *gin.Context) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, a.MaxBody))
	if err != nil {
		return nil, readError(err)
	}
	return body, nil
}

// refuseBody refuses the body of a request that needs none. It allows {}, for clients that always send a body.
func (a *api) refuseBody(c *gin.Context) error {
	body, err := a.readBody(c)
	if err != nil {
		return err
	}
	compact := jsontext.Value(body)
	if compact.Compact() == nil && string(compact) == "{}" || len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	return &statusError{http.StatusBadRequest, "this request takes no body; leave it out, or send {}"}
}

// readError returns the error of a failed read of a body. The client is at fault unless another cause is known.
func readError(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return &statusError{http.StatusRequestTimeout, "the body did not arrive in time"}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return err
	}
	return &statusError{http.StatusBadRequest, "the body ended too early"}
}

// mediaType returns the media type of a request's body, which must be one of the accepted ones.
func mediaType(r *http.Request, accepted ...string) (string, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || !slices.Contains(accepted, media) {
		return "", &statusError{http.StatusUnsupportedMediaType,
			fmt.Sprintf("the Content-Type must be %s, not %q", strings.Join(accepted, " or "), r.Header.Get("Content-Type"))}
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return "", &statusError{http.StatusUnsupportedMediaType,
			fmt.Sprintf("the Content-Encoding %q is not supported; send the body without it", coding)}
	}
	return media, nil
}

// nameInPath returns the name that a parameter of a path stands for. Browsers and some proxies resolve the segments .
// and .. even if they are escaped. So names that are these have other spellings too, which no name can have by itself.
func nameInPath(parameter string) (string, error) {
	name, err := url.PathUnescape(parameter)
	if dots, ok := strings.CutPrefix(name, job.ReservedPrefix); ok && (dots == "." || dots == "..") {
		return dots, nil
	}
	return name, err
}

// keyInPath reads the job's key in a path.
func keyInPath(c *gin.Context) (string, error) {
	key, err := nameInPath(c.Param("key"))
	if err != nil || !job.ValidKey(key) {
		return "", &parameterError{"key", keyRule}
	}
	return key, nil
}

var keyRule = fmt.Sprintf("must be 1 to %d bytes of UTF-8 without control characters", job.MaxKeyBytes)

// readQuery reads a request's query. It refuses an unknown or repeated parameter: if it were ignored, the request could
// affect more than the client meant.
func readQuery(r *http.Request, known ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &statusError{http.StatusBadRequest, "the query is malformed: " + err.Error()}
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			message := "is not a known parameter; there are none here"
			if len(known) > 0 {
				message = "is not a known parameter; the parameters here are " + strings.Join(known, ", ")
			}
			return nil, &parameterError{name, message}
		}
		if len(values) > 1 {
			return nil, &parameterError{name, "is given twice; give it once"}
		}
	}
	return query, nil
}

// keyParameter reads a query parameter that is a key or the start of one; it returns "" for a missing one.
func keyParameter(query url.Values, name string) (string, error) {
	if !query.Has(name) {
		return "", nil
	}
	if value := query.Get(name); job.ValidKey(value) {
		return value, nil
	}
	return "", &parameterError{name, keyRule}
}

// The numbers of items in a page. The maximum is that of every list in an answer.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

func limitParameter(query url.Values) (int, error) {
	return numberParameter(query, "limit", defaultLimit)
}

// numberParameter reads the number of items in a list, from 1 to the maximum.
func numberParameter(query url.Values, name string, byDefault int) (int, error) {
	if !query.Has(name) {
		return byDefault, nil
	}
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < 1 || n > maxLimit {
		return 0, &parameterError{name, fmt.Sprintf("must be a whole number from 1 to %d", maxLimit)}
	}
	return n, nil
}

// errBadCursor is the error of a cursor that no page has returned.
var errBadCursor = &parameterError{"cursor", "must be the nextCursor of an earlier page, or left out"}

// keyCursor returns the cursor of a page whose last item has the key.
func keyCursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func keyCursorParameter(query url.Values) (string, error) {
	if !query.Has("cursor") {
		return "", nil
	}
	key, err := base64.RawURLEncoding.Strict().DecodeString(query.Get("cursor"))
	if err != nil || !job.ValidKey(string(key)) {
		return "", errBadCursor
	}
	return string(key), nil
}

// idCursorParameter reads a cursor that is the id of a page's last item.
func idCursorParameter(query url.Values) (job.ID, error) {
	if !query.Has("cursor") {
		return job.ID{}, nil
	}
	id, err := job.ParseID(query.Get("cursor"))
	if err != nil {
		return job.ID{}, errBadCursor
	}
	return id, nil
}

// putCondition reads the headers If-Match and If-None-Match of a request that puts a job.
func putCondition(r *http.Request) (store.Condition, error) {
	match, noneMatch := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	switch {
	case len(match) == 0 && len(noneMatch) == 0:
		return store.Condition{}, nil
	case len(match) > 0 && len(noneMatch) > 0:
		return store.Condition{}, &statusError{http.StatusBadRequest, "give If-Match or If-None-Match, not both"}
	case len(noneMatch) > 0:
		if all, _, ok := entityTags(noneMatch); !ok || !all {
			return store.Condition{}, &statusError{http.StatusBadRequest, "If-None-Match must be * here"}
		}
		return store.Condition{Absent: true}, nil
	default:
		return matchCondition(match)
	}
}

// matchCondition reads the header If-Match.
func matchCondition(lines []string) (store.Condition, error) {
	all, tags, ok := entityTags(lines)
	switch {
	case !ok:
		return store.Condition{}, &statusError{http.StatusBadRequest,
			`If-Match must be * or a list of entity tags, such as "01JF..."`}
	case all:
		return store.Condition{Present: true}, nil
	}
	var condition store.Condition
	for _, tag := range tags {
		version, _, _ := strings.Cut(tag, "-") // the version comes before the digest of the body, see [tagOf]
		// A weak tag keeps its W/, and so never matches.
		condition.Versions = append(condition.Versions, job.Revision(version))
	}
	return condition, nil
}

// refuseConditions refuses If-Match and If-None-Match on routes that do not support them: a client that sends one
// relies on it.
func refuseConditions(r *http.Request) error { return refuseHeaders(r, "If-Match", "If-None-Match") }

// change makes a change that supports no conditions. parse reads the body; do gets the result, and the context that
// ends when the change may no longer take effect.
func change[T any](
	a *api, c *gin.Context, parse func([]byte) (T, error), do func(context.Context, T) error,
) error {
	if err := refuseConditions(c.Request); err != nil {
		return err
	}
	body, err := a.readJSON(c)
	if err != nil {
		return err
	}
	draft, err := parse(body)
	if err != nil {
		return err
	}
	return a.changeOnly(c, func(ctx context.Context) error { return do(ctx, draft) })
}

// changeOnly is [change] for a change without a body.
func (a *api) changeOnly(c *gin.Context, do func(context.Context) error) error {
	if err := refuseConditions(c.Request); err != nil {
		return err
	}
	ctx, cancel, _ := a.inTime(c.Request)
	defer cancel()
	return do(ctx)
}

func refuseHeaders(r *http.Request, names ...string) error {
	for _, name := range names {
		if len(r.Header.Values(name)) > 0 {
			return &statusError{http.StatusBadRequest, name + " is not supported here; leave it out"}
		}
	}
	return nil
}

// knownTag returns the entity tag in If-None-Match that is the present one, or its compressed form. For "*" it returns
// the present one. Known is false if no tag matches.
func knownTag(r *http.Request, present string) (tag string, known bool) {
	lines := r.Header.Values("If-None-Match")
	if len(lines) == 0 {
		return "", false
	}
	all, tags, ok := entityTags(lines)
	if !ok {
		return "", false
	}
	for _, tag := range tags {
		if weak, ok := strings.CutPrefix(tag, `W/"`); ok { // If-None-Match compares weakly
			tag = strings.TrimSuffix(weak, `"`)
		}
		if tag == present || tag == present+gzipSuffix {
			return tag, true
		}
	}
	return present, all
}

// entityTags reads a list of entity tags (RFC 9110, section 8.8.3). All is true for "*". Strong tags are returned
// without their quotes, weak ones as they are.
func entityTags(lines []string) (all bool, tags []string, ok bool) {
	rest := strings.TrimSpace(strings.Join(lines, ","))
	if rest == "*" {
		return true, nil, true
	}
	for {
		rest = strings.TrimLeft(rest, " \t,")
		if rest == "" {
			return false, tags, len(tags) > 0
		}
		opaque, weak := strings.CutPrefix(rest, "W/")
		inside, after, closed := strings.Cut(strings.TrimPrefix(opaque, `"`), `"`)
		if !closed || opaque[:1] != `"` || strings.IndexFunc(inside, notInTag) >= 0 {
			return false, nil, false
		}
		if weak {
			inside = `W/"` + inside + `"`
		}
		tags = append(tags, inside)
		rest = strings.TrimLeft(after, " \t")
		if rest != "" && rest[0] != ',' {
			return false, nil, false
		}
	}
}

// notInTag reports whether a character is not allowed in an entity tag. Unlike the RFC, it allows only ASCII, like the
// API's own tags.
func notInTag(r rune) bool { return r <= ' ' || r > '~' }
