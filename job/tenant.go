package job

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

// Tenant is one on whose behalf jobs are submitted. What is due of all of them is shared out by their settings.
type Tenant struct {
	Name string
	// FirstSeen is when a job of it was first submitted, or its settings were first made.
	FirstSeen time.Time
	Settings  TenantSettings
}

// TenantSettings say how a tenant is served. The zero value has the defaults.
type TenantSettings struct {
	// Weight is how much of what the tenants of a priority share goes to this one, beside theirs. Zero is 1.
	Weight float64 `json:"weight,omitzero"`
	// Priority is that of its jobs which have none of their own.
	Priority Priority `json:"priority,omitzero"`
	// MaxInFlight is how many of its callbacks may be under way at once on each replica. Zero is no limit of its own.
	MaxInFlight int `json:"maxInFlight,omitzero"`
	// Paused stops all of its jobs from firing. What falls due waits.
	Paused bool `json:"paused,omitzero"`
}

// Encode returns the settings as stores keep them: compact JSON, or nothing if all are left at their defaults.
func (s TenantSettings) Encode() []byte {
	if s == (TenantSettings{}) {
		return nil
	}
	return mustEncode(s)
}

// DecodeTenantSettings reads what [TenantSettings.Encode] wrote.
func DecodeTenantSettings(b []byte) (s TenantSettings, err error) {
	if len(b) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return TenantSettings{}, fmt.Errorf("decode the settings of a tenant: %w", err)
	}
	return s, nil
}
