package handlers

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// index lists the entry points of the API, for a client that knows only its address.
type index struct {
	Service       string `json:"service"`
	Version       string `json:"version"`
	Jobs          string `json:"jobs"`
	Specification string `json:"specification"`
	Readiness     string `json:"readiness"`
	Metrics       string `json:"metrics,omitempty"`
	Documentation string `json:"documentation"`
}

// showIndex answers with the name of the service and the paths of its parts.
func (a *api) showIndex(c *gin.Context) error {
	all := index{
		Service: "carillon", Version: a.Version, Jobs: "/v1/jobs", Specification: "/openapi.yaml", Readiness: "/readyz",
		Documentation: "https://github.com/carillon-scheduler/carillon",
	}
	if a.Metrics != nil {
		all.Metrics = "/metrics"
	}
	return writeJSON(c, http.StatusOK, all)
}

// noRoute answers an unknown path. A path with too many parts after /v1/jobs has slashes in its key.
func noRoute(c *gin.Context) error {
	const jobs = "/v1/jobs/"
	detail := "there is nothing at this path; GET / lists the paths"
	key, isJob := strings.CutPrefix(c.Request.URL.EscapedPath(), jobs)
	if !isJob || !strings.Contains(key, "/") {
		return &statusError{http.StatusNotFound, detail}
	}
	action := ""
	for _, a := range []string{"/preview", "/pause", "/resume", "/trigger"} {
		if before, ok := strings.CutSuffix(key, a); ok {
			key, action = before, a
		}
	}
	return &statusError{http.StatusNotFound, detail + ". If the job's key has slashes, write them as %2F: " +
		jobs + strings.ReplaceAll(key, "/", "%2F") + action}
}
