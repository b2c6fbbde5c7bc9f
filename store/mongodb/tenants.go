package mongodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// tenantDocument is a document of the collection tenants.
type tenantDocument struct {
	Name      string    `bson:"_id"`
	FirstSeen time.Time `bson:"firstSeen"`
	Settings  []byte    `bson:"settings"`      // null: the defaults
	Set       bool      `bson:"set,omitempty"` // it has or had settings of its own; for the index of these
}

// MeetTenants implements [store.Tenants]. Of a name that repeats, the server inserts the first and refuses the others.
func (s *Store) MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error) {
	documents := make([]any, len(tenants))
	for i, t := range tenants {
		settings := t.Settings.Encode()
		documents[i] = tenantDocument{Name: t.Name, FirstSeen: t.FirstSeen, Settings: settings, Set: settings != nil}
	}
	inserted, _, err = insertNew(ctx, s.tenants, documents)
	return inserted, err
}

// SetTenant implements [store.Tenants]. One that is there is never deleted, so once it was inserted, with the defaults,
// the update finds it. An upsert would do with one command, but can't be bounded.
func (s *Store) SetTenant(ctx context.Context, t job.Tenant) error {
	ctx, cancel := within(ctx)
	defer cancel()
	if _, err := s.MeetTenants(ctx, []job.Tenant{{Name: t.Name, FirstSeen: t.FirstSeen}}); err != nil {
		return notDone(err)
	}
	return s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		result, err := s.tenants.UpdateOne(ctx, both(bson.M{"_id": t.Name}, inTime),
			bson.M{"$set": bson.M{"settings": t.Settings.Encode(), "set": true}})
		return err == nil && result.MatchedCount > 0, err
	})
}

// Tenant implements [store.Tenants].
func (s *Store) Tenant(ctx context.Context, name string) (job.Tenant, error) {
	var d tenantDocument
	err := s.tenants.FindOne(ctx, bson.M{"_id": name}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return job.Tenant{}, store.ErrNotFound
	}
	if err != nil {
		return job.Tenant{}, mapError(err)
	}
	return d.tenant()
}

// Tenants implements [store.Tenants].
func (s *Store) Tenants(ctx context.Context, filter store.TenantFilter) ([]job.Tenant, error) {
	of := bson.M{"$gt": filter.After}
	if len(filter.Names) > 0 {
		of["$in"] = filter.Names
	}
	query := bson.M{"_id": of}
	if filter.Set {
		query["set"], query["settings"] = true, bson.M{"$ne": nil}
	}
	found, err := find[tenantDocument](ctx, s.tenants, query,
		options.Find().SetSort(keys("_id")).SetLimit(int64(filter.Limit)))
	if err != nil {
		return nil, err
	}
	page := make([]job.Tenant, len(found))
	for i := range found {
		if page[i], err = found[i].tenant(); err != nil {
			return nil, err
		}
	}
	return page, nil
}

func (d *tenantDocument) tenant() (job.Tenant, error) {
	settings, err := job.DecodeTenantSettings(d.Settings)
	if err != nil {
		return job.Tenant{}, fmt.Errorf("tenant %s: %w", d.Name, err)
	}
	return job.Tenant{Name: d.Name, FirstSeen: d.FirstSeen, Settings: settings}, nil
}

// markSet marks tenants that have settings of their own, as an older version does not.
func (s *Store) markSet(ctx context.Context) error {
	_, err := s.tenants.UpdateMany(ctx, bson.M{"settings": bson.M{"$ne": nil}, "set": bson.M{"$ne": true}}, bson.M{"$set": bson.M{"set": true}})
	return mapError(err)
}
