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
	// FirstSeen is the time of the tenant's first job, or of its first settings.
	FirstSeen time.Time
	Settings  TenantSettings
}

// TenantSettings are a tenant's settings. The zero value has the defaults.
type TenantSettings struct {
	// Weight is the tenant's share of the slots of its priority, relative to the other tenants' weights. Zero is 1.
	Weight float64 `json:"weight,omitzero"`
	// Priority is that of jobs without their own.
	Priority Priority `json:"priority,omitzero"`
	// MaxInFlight is the largest number of its callbacks under way at once on each replica. Zero is no limit.
	MaxInFlight int `json:"maxInFlight,omitzero"`
	// Paused stops all of its jobs from firing. Occurrences that fall due wait.
	Paused bool `json:"paused,omitzero"`
	// PausedAt is the beginning of the pause, in Unix milliseconds, and PausedBy the id of the principal that asked for
	// it. They are zero if the tenant is not paused, or if a version without these fields paused it.
	PausedAt int64  `json:"pausedAt,omitzero"`
	PausedBy string `json:"pausedBy,omitzero"`
	// Events say which events are delivered, and to whom; nil for none. They are not changed once made.
	Events *EventSettings `json:"events,omitzero"`
}

// TenantDraft are settings as a client submits and sees them. A field that is left out has its default. The weight has
// a minimum: a tenant with less would be served so rarely that it would catch up only after ages when its weight is
// raised.
type TenantDraft struct {
	Weight      *float64  `json:"weight,omitzero" validate:"omitnil,min=0.001,max=1000"`
	Priority    *Priority `json:"priority,omitzero" validate:"omitnil,oneof=high normal low"`
	MaxInFlight *int      `json:"maxInFlight,omitzero" validate:"omitnil,min=1,max=1000000"`
	Paused      bool      `json:"paused"`

	Events *EventSettings `json:"events,omitzero"`
}

// Check implements [Checker].
func (d *TenantDraft) Check(invalid *Invalid) {
	CheckTags(d, invalid)
	if d != nil && d.Events != nil {
		d.Events.check(invalid)
	}
}

// ParseTenantSettings reads a tenant's settings as a client submits them. The error is a [*Malformed] or an [*Invalid].
func ParseTenantSettings(body []byte) (TenantSettings, error) {
	d, err := Parse[*TenantDraft](body)
	if err != nil {
		return TenantSettings{}, err
	}
	return TenantSettings{
		Weight: value(d.Weight), Priority: value(d.Priority), MaxInFlight: value(d.MaxInFlight), Paused: d.Paused,
		Events: d.Events,
	}, nil
}

// Draft returns the settings as a client could submit them again, with the effective weight.
func (s TenantSettings) Draft() TenantDraft {
	weight := s.EffectiveWeight()
	return TenantDraft{
		Weight: &weight, Priority: given(s.Priority), MaxInFlight: given(s.MaxInFlight), Paused: s.Paused, Events: s.Events,
	}
}

// EffectiveWeight returns the weight, or its default.
func (s TenantSettings) EffectiveWeight() float64 { return cmp.Or(s.Weight, 1) }

// Encode returns the settings as stores keep them: compact JSON, or nothing if all have their defaults.
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
