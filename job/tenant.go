package job

import (
	"cmp"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

// Tenant is the owner of jobs. Tenants share the slots for due occurrences by their settings.
type Tenant struct {
	Name string
	// FirstSeen is when a job of it was first submitted, or its settings were first made.
	FirstSeen time.Time
	Settings  TenantSettings
}

// TenantSettings say how a tenant is served. The zero value has the defaults.
type TenantSettings struct {
	// Weight is the tenant's part of the slots of its priority, beside the weights of the other tenants. Zero is 1.
	Weight float64 `json:"weight,omitzero"`
	// Priority is that of its jobs which have none of their own.
	Priority Priority `json:"priority,omitzero"`
	// MaxInFlight is how many of its callbacks may be under way at once on each replica. Zero is no limit of its own.
	MaxInFlight int `json:"maxInFlight,omitzero"`
	// Paused stops all of its jobs from firing. Occurrences that fall due wait.
	Paused bool `json:"paused,omitzero"`
}

// TenantDraft are settings as a client submits and sees them. A field that is left out has its default. With less than
// the least weight, a tenant would be served so rarely that it took ages to get its due after its weight was raised.
type TenantDraft struct {
	Weight      *float64  `json:"weight,omitzero" validate:"omitnil,min=0.001,max=1000"`
	Priority    *Priority `json:"priority,omitzero" validate:"omitnil,oneof=high normal low"`
	MaxInFlight *int      `json:"maxInFlight,omitzero" validate:"omitnil,min=1,max=1000000"`
	Paused      bool      `json:"paused"`
}

// ParseTenantSettings reads a tenant's settings as a client submits them. The error is a [*Malformed] or an [*Invalid].
func ParseTenantSettings(body []byte) (TenantSettings, error) {
	d, err := Parse[*TenantDraft](body)
	if err != nil {
		return TenantSettings{}, err
	}
	return TenantSettings{
		Weight: value(d.Weight), Priority: value(d.Priority), MaxInFlight: value(d.MaxInFlight), Paused: d.Paused,
	}, nil
}

// Draft is the settings as they could be submitted again, with the weight that they stand for.
func (s TenantSettings) Draft() TenantDraft {
	weight := s.EffectiveWeight()
	return TenantDraft{Weight: &weight, Priority: given(s.Priority), MaxInFlight: given(s.MaxInFlight), Paused: s.Paused}
}

// EffectiveWeight is the weight, with its default filled in.
func (s TenantSettings) EffectiveWeight() float64 { return cmp.Or(s.Weight, 1) }

// Encode returns the settings as stores keep them: compact JSON, or nothing if all are left at their defaults.
func (s TenantSettings) Encode() []byte {
	if s == (TenantSettings{}) {
		return nil
	}
	return mustEncode(s)
}

// DecodeTenantSettings is the inverse of [TenantSettings.Encode].
func DecodeTenantSettings(b []byte) (s TenantSettings, err error) {
	if len(b) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return TenantSettings{}, fmt.Errorf("decode the settings of a tenant: %w", err)
	}
	return s, nil
}
