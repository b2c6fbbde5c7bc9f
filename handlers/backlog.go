package handlers

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/backlog"
)

// defaultBacklog is the number of tenants and of destinations in an answer.
const defaultBacklog = 20

// DestinationState is the state of one destination of callbacks, as one replica sees it.
type DestinationState = backlog.DestinationState

// getBacklog answers with the pending and due occurrences by priority, tenant and destination, and the time to drain
// them.
func (a *api) getBacklog(c *gin.Context) error {
	query, err := readQuery(c.Request, "limit")
	if err != nil {
		return err
	}
	limit, err := numberParameter(query, "limit", defaultBacklog)
	if err != nil {
		return err
	}
	view, err := a.backlog.Recent(c.Request.Context(), who(c).Scope)
	if err != nil {
		return err
	}
	view.Tenants = view.Tenants[:min(limit, len(view.Tenants))]
	view.Destinations = view.Destinations[:min(limit, len(view.Destinations))]
	return writeJSON(c, http.StatusOK, view)
}
